//! Lookups of the paths above and beneath a path in an ordered map, without a search of all: an undo
//! has as many steps as a session made changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::model::WorkspacePath;

/// Returns the entries of a map for a path and for what is beneath it.
pub(super) fn beneath<'m, V>(
    map: &'m BTreeMap<WorkspacePath, V>,
    path: &'m WorkspacePath,
) -> impl Iterator<Item = (&'m WorkspacePath, &'m V)> {
    map.range::<WorkspacePath, _>((Bound::Included(path), Bound::Unbounded))
        .take_while(|(own, _)| own.as_str().starts_with(path.as_str()))
        .filter(|(own, _)| own.is_within(path))
}

/// Returns those, and the entries for the directories above the path.
pub(super) fn related<'m, V>(
    map: &'m BTreeMap<WorkspacePath, V>,
    path: &'m WorkspacePath,
) -> impl Iterator<Item = (&'m WorkspacePath, &'m V)> {
    let above = path.ancestors().into_iter().filter_map(|above| map.get_key_value(&above));
    beneath(map, path).chain(above)
}

/// Takes the entries of a map for a path and for what is beneath it.
pub(super) fn take<V>(
    map: &mut BTreeMap<WorkspacePath, V>,
    path: &WorkspacePath,
) -> Vec<(WorkspacePath, V)> {
    let beneath: Vec<_> = beneath(map, path).map(|(own, _)| own.clone()).collect();
    beneath.iter().filter_map(|own| map.remove_entry(own)).collect()
}

/// Moves the entries of a map as a rename moves what they are about.
pub(super) fn rename<V>(
    map: &mut BTreeMap<WorkspacePath, V>,
    from: &WorkspacePath,
    to: &WorkspacePath,
) {
    let (moved, _) = (take(map, from), take(map, to));
    put(map, moved, from, to);
}

/// Moves them as an exchange does.
pub(super) fn exchange<V>(
    map: &mut BTreeMap<WorkspacePath, V>,
    one: &WorkspacePath,
    other: &WorkspacePath,
) {
    let (first, second) = (take(map, one), take(map, other));
    put(map, first, one, other);
    put(map, second, other, one);
}

fn put<V>(
    map: &mut BTreeMap<WorkspacePath, V>,
    taken: Vec<(WorkspacePath, V)>,
    from: &WorkspacePath,
    to: &WorkspacePath,
) {
    let moved = taken.into_iter();
    map.extend(moved.filter_map(|(path, value)| Some((path.rebase(from, to)?, value))));
}

/// The paths of some steps.
#[derive(Debug, Default)]
pub(super) struct StepPaths(BTreeMap<WorkspacePath, ()>);

impl StepPaths {
    /// Adds those of a step.
    pub(super) fn add(&mut self, paths: Vec<&WorkspacePath>) {
        self.0.extend(paths.into_iter().map(|path| (path.clone(), ())));
    }

    /// True if one of the paths of another step is one of them, beneath one or above one.
    pub(super) fn are_related_to(&self, paths: Vec<&WorkspacePath>) -> bool {
        paths.into_iter().any(|path| related(&self.0, path).next().is_some())
    }
}

/// Returns the positions of steps with these paths in groups: of those that are related, directly or
/// by others.
pub(super) fn groups<'s>(
    steps: impl Iterator<Item = Vec<&'s WorkspacePath>>,
) -> Vec<BTreeSet<usize>> {
    let mut last: BTreeMap<WorkspacePath, usize> = BTreeMap::new();
    let mut leaders = Vec::new();
    for (place, paths) in steps.enumerate() {
        leaders.push(place);
        for path in &paths {
            for (_, other) in related(&last, path) {
                let other = leader(&mut leaders, *other);
                leaders.get_mut(other).into_iter().for_each(|leader| *leader = place);
            }
        }
        last.extend(paths.into_iter().map(|path| (path.clone(), place)));
    }
    let mut groups: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for place in 0..leaders.len() {
        groups.entry(leader(&mut leaders, place)).or_default().insert(place);
    }
    groups.into_values().collect()
}

/// Returns the last step of a group, and shortens the way to it.
fn leader(leaders: &mut [usize], mut place: usize) -> usize {
    while let Some(next) = leaders.get(place).copied().filter(|next| *next != place) {
        let after = leaders.get(next).copied().unwrap_or(next);
        leaders.get_mut(place).into_iter().for_each(|leader| *leader = after);
        place = next;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<WorkspacePath> {
        names.iter().map(|name| WorkspacePath::parse(name).unwrap()).collect()
    }

    #[test]
    fn steps_are_in_groups_with_what_is_above_and_beneath() {
        let steps: [&[&str]; 7] =
            [&["a/b/c"], &["ab"], &["x"], &["a/b"], &["a", "y"], &["y/z"], &["a/b/c"]];
        let steps = steps.map(paths);
        let groups = groups(steps.iter().map(|paths| paths.iter().collect()));
        let expected = [&[0, 3, 4, 5, 6][..], &[1], &[2]];
        assert_eq!(groups.len(), expected.len(), "{groups:?}");
        for group in expected {
            assert!(groups.contains(&group.iter().copied().collect()), "{groups:?}");
        }
        let mut left_out = StepPaths::default();
        left_out.add(paths(&["a/b", "d"]).iter().collect());
        for (name, is_related) in
            [("a", true), ("a/b", true), ("a/b/c", true), ("a/c", false), ("d/e", true)]
        {
            let paths = paths(&[name]);
            assert_eq!(left_out.are_related_to(paths.iter().collect()), is_related, "{name}");
        }
    }
}
