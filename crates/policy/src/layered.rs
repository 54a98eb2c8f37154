//! Settings as a policy file states them, with their places.

/// A value and its place: index of the layer and line. The place is `None` for a built-in default.
#[derive(Debug, Clone, Copy)]
pub struct Layered<T> {
    /// The value.
    pub value: T,
    pub(super) location: Option<(usize, u64)>,
}

impl<T> Layered<T> {
    /// Returns the value as stated by the file of layer `layer`.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        Self { location: self.location.map(|(_, line)| (layer, line)), ..self }
    }
}

/// Returns the smaller of both; a missing one sets no bound.
pub(super) fn least<T: Ord + Copy>(
    ours: Option<Layered<T>>,
    theirs: Option<Layered<T>>,
) -> Option<Layered<T>> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(if theirs.value < ours.value { theirs } else { ours }),
        (ours, theirs) => ours.or(theirs),
    }
}
