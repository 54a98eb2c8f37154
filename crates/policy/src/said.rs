//! What a policy file says of a setting, and where.

/// A value and where it was said: index of the layer and line. `None` for a
/// built-in default.
#[derive(Debug, Clone, Copy)]
pub struct Said<T> {
    /// The value.
    pub value: T,
    pub(super) place: Option<(usize, u64)>,
}

impl<T> Said<T> {
    /// The same as said by the `layer`th file of a policy.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        Self { place: self.place.map(|(_, line)| (layer, line)), ..self }
    }
}

/// The smaller of both; one that is not stated sets no bound.
pub(super) fn least<T: Ord + Copy>(
    ours: Option<Said<T>>,
    theirs: Option<Said<T>>,
) -> Option<Said<T>> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(if theirs.value < ours.value { theirs } else { ours }),
        (ours, theirs) => ours.or(theirs),
    }
}
