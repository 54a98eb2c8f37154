//! Settings as a policy file states them, with their places.

/// A value and its place: index of the layer and line. The place is `None` for a built-in default.
#[derive(Debug, Clone, Copy)]
pub struct Said<T> {
    /// The value.
    pub value: T,
    pub(super) place: Option<(usize, u64)>,
}

impl<T> Said<T> {
    /// Returns the value as stated by the file of layer `layer`.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        Self { place: self.place.map(|(_, line)| (layer, line)), ..self }
    }
}

/// Returns the smaller of both; a missing one sets no bound.
pub(super) fn least<T: Ord + Copy>(
    ours: Option<Said<T>>,
    theirs: Option<Said<T>>,
) -> Option<Said<T>> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(if theirs.value < ours.value { theirs } else { ours }),
        (ours, theirs) => ours.or(theirs),
    }
}
