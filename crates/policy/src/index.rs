//! An index of patterns, which finds those that may match a path without trying them all.
//!
//! Every pattern is indexed by one property of matching paths: a component with a certain text, a
//! certain extension, or a certain start. Of a pattern's properties the rarest one is used, so
//! `src/a/**` and `src/b/**` are not both indexed by `src`. Keys are hashes, and a collision only
//! costs a comparison: the result is always the same as that of trying every pattern.

use std::{
    cell::OnceCell,
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::pattern::{self, Name, Pattern};

/// A path split into components, with the keys by which patterns are indexed.
#[derive(Debug)]
pub struct Components<'p> {
    list: Vec<IndexedComponent<'p>>,
}

#[derive(Debug)]
struct IndexedComponent<'p> {
    text: &'p str,
    /// The text before folding, if `?` and `[…]` could miss it otherwise.
    unfolded: Option<&'p str>,
    /// Computed when a set with patterns first needs them.
    keys: OnceCell<[u64; 3]>,
}

impl IndexedComponent<'_> {
    fn keys(&self) -> &[u64; 3] {
        self.keys.get_or_init(|| Components::keys_of(self.text))
    }
}

impl pattern::Component for &IndexedComponent<'_> {
    fn is(self, name: &Name) -> bool {
        name.matches(self.text) || self.unfolded.is_some_and(|text| name.matches_unfolded(text))
    }
}

impl<'p> Components<'p> {
    /// Splits `path`, and its text before folding if that matters.
    pub fn spelled(path: &'p str, unfolded: Option<&'p str>) -> Self {
        let mut components = Self::of(path);
        let texts = unfolded.into_iter().flat_map(split);
        for (component, text) in components.list.iter_mut().zip(texts) {
            component.unfolded = Some(text);
        }
        components
    }

    /// Splits `path`.
    pub(super) fn of(path: &'p str) -> Self {
        let mut list = Vec::with_capacity(8);
        let component = |text| IndexedComponent { text, unfolded: None, keys: OnceCell::new() };
        list.extend(split(path).map(component));
        Self { list }
    }

    /// Computes the keys of one component.
    pub(super) fn keys_of(text: &str) -> [u64; 3] {
        let text = text.as_bytes();
        let extension = text.iter().rposition(|byte| *byte == b'.');
        let extension = extension.and_then(|dot| text.get(dot + 1..));
        [
            key(Kind::Whole, text),
            extension.map_or(0, |end| key(Kind::Extension, end)),
            text.get(..KEY_LENGTH).map_or(0, |start| key(Kind::Start, start)),
        ]
    }

    /// Returns the number of components.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the last component, `None` for the root.
    pub(super) fn last(&self) -> Option<&'p str> {
        self.list.last().map(|component| component.text)
    }

    /// Returns all components.
    pub(super) fn texts(&self) -> impl Iterator<Item = &'p str> + Clone {
        self.list.iter().map(|component| component.text)
    }

    /// True if `pattern` matches the path.
    pub fn are(&self, pattern: &Pattern) -> bool {
        pattern.matches(self.list.iter())
    }

    /// Returns the lengths, in components, of the prefixes that `pattern` matches: the path itself
    /// or a directory above it, never the root.
    pub(super) fn prefixes_matching<'a>(
        &'a self,
        pattern: &'a Pattern,
    ) -> impl Iterator<Item = usize> + 'a {
        let last_only = pattern.last_name_only();
        self.list.iter().enumerate().filter_map(move |(index, component)| {
            let length = index + 1;
            let matched = match last_only {
                Some(name) => pattern::Component::is(component, name),
                None => pattern.matches(self.list.iter().take(length)),
            };
            matched.then_some(length)
        })
    }
}

fn split(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|text| !text.is_empty())
}

/// A set of patterns, each for an entry of some list.
#[derive(Debug, Default)]
pub struct PatternSet {
    patterns: Vec<(u32, Pattern)>,
    filed: HashMap<u64, Vec<u32>, BuildHasherDefault<KeyHasher>>,
    /// A bit for the highest bits of each key of `filed`, which excludes nearly all other keys
    /// quickly.
    seen: Box<[u64]>,
    unfiled: Vec<u32>,
}

impl PatternSet {
    /// Indexes `patterns`, each with the number of its entry. An entry may have several.
    pub(super) fn new(patterns: Vec<(u32, Pattern)>) -> Self {
        let mut counts: HashMap<u64, u32, BuildHasherDefault<KeyHasher>> = HashMap::default();
        for key in patterns.iter().flat_map(|(_, pattern)| keys(pattern)) {
            *counts.entry(key).or_default() += 1;
        }
        let mut set = Self { patterns, ..Self::default() };
        for (number, (_, pattern)) in (0..).zip(&set.patterns) {
            let rarest = keys(pattern).min_by_key(|key| counts.get(key).copied().unwrap_or(0));
            match rarest {
                Some(key) => set.filed.entry(key).or_default().push(number),
                None => set.unfiled.push(number),
            }
        }
        set.seen = vec![0; (set.filed.len() / 2).next_power_of_two()].into();
        for key in set.filed.keys() {
            let (word, bit) = location(*key, set.seen.len());
            if let Some(word) = set.seen.get_mut(word) {
                *word |= bit;
            }
        }
        set
    }

    /// True if `accept` accepts a pattern of the set.
    pub fn any(&self, mut accept: impl FnMut(u32, &Pattern) -> bool) -> bool {
        self.patterns.iter().any(|(entry, pattern)| accept(*entry, pattern))
    }

    /// Returns the patterns, with their entries, that are indexed by a component's key.
    pub(super) fn filed(&self, key: u64) -> impl Iterator<Item = (u32, &Pattern)> {
        let (word, bit) = location(key, self.seen.len());
        let seen = self.seen.get(word).is_some_and(|seen| seen & bit != 0);
        let numbers = if seen { self.filed.get(&key) } else { None };
        let entry = |number: &u32| self.patterns.get(usize::try_from(*number).ok()?);
        numbers.into_iter().flatten().filter_map(entry).map(|(entry, pattern)| (*entry, pattern))
    }

    /// True if any pattern is indexed by a key.
    pub(super) fn files_any(&self) -> bool {
        !self.filed.is_empty()
    }

    /// Returns the patterns, with their entries, that [`first`](Self::first) tries for every path
    /// that begins with these components.
    pub(super) fn candidates<'a, 'c>(
        &'a self,
        components: &'c Components<'c>,
    ) -> impl Iterator<Item = (u32, &'a Pattern)> {
        let keys = components.list.iter().flat_map(IndexedComponent::keys);
        let filed = keys.filter_map(|key| self.filed.get(key)).flatten();
        self.unfiled
            .iter()
            .chain(filed)
            .filter_map(|number| self.patterns.get(usize::try_from(*number).ok()?))
            .map(|(entry, pattern)| (*entry, pattern))
    }

    /// Returns the patterns of an entry.
    pub fn of(&self, entry: u32) -> impl Iterator<Item = &Pattern> {
        let is_its = move |(of, _): &&(u32, Pattern)| *of == entry;
        self.patterns.iter().filter(is_its).map(|(_, pattern)| pattern)
    }

    /// True if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the lowest entry with a pattern that `accept` accepts, among those that may match
    /// `components`.
    pub(super) fn first(
        &self,
        components: &Components<'_>,
        mut accept: impl FnMut(u32, &Pattern) -> bool,
    ) -> Option<u32> {
        let mut best: Option<u32> = None;
        let mut try_one = |(entry, pattern): &(u32, Pattern)| {
            if best.is_none_or(|best| *entry < best) && accept(*entry, pattern) {
                best = Some(*entry);
            }
        };
        // Keys are those of the folded name. Folding may join a mark to the character before it,
        // and so change the key.
        if components.list.iter().any(|component| component.unfolded.is_some()) {
            self.patterns.iter().for_each(try_one);
            return best;
        }
        let mut try_all = |numbers: &[u32]| {
            let numbers = numbers.iter().filter_map(|number| usize::try_from(*number).ok());
            numbers.filter_map(|number| self.patterns.get(number)).for_each(&mut try_one);
        };
        try_all(&self.unfiled);
        if !self.filed.is_empty() {
            for component in &components.list {
                for key in component.keys() {
                    if let Some(numbers) = self.filed.get(key) {
                        try_all(numbers);
                    }
                }
            }
        }
        best
    }
}

/// Number of bytes of a name's start that form a key.
const KEY_LENGTH: usize = 2;

#[derive(Clone, Copy)]
enum Kind {
    Whole = 1,
    Extension = 2,
    Start = 3,
}

fn keys(pattern: &Pattern) -> impl Iterator<Item = u64> + '_ {
    pattern.names().flat_map(|name| {
        let whole = match name {
            Name::Literal(text) => Some(key(Kind::Whole, text.as_bytes())),
            _ => None,
        };
        let extension = name
            .literal_end()
            .rsplit_once('.')
            .map(|(_, end)| key(Kind::Extension, end.as_bytes()));
        let start =
            name.literal_start().as_bytes().get(..KEY_LENGTH).map(|start| key(Kind::Start, start));
        [whole, extension, start].into_iter().flatten()
    })
}

/// Computes a fast hash, eight bytes at a time. The policy determines the table, so an attacker
/// chooses only the keys to look up, never those in the table.
fn key(kind: Kind, bytes: &[u8]) -> u64 {
    // The multiplier is odd, from the digits of the golden ratio, as in Fibonacci hashing.
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = mix(kind as u64, bytes.len() as u64);
    let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    mix(hash, rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// Returns the word and the bit of a key among `words` words, a power of two.
fn location(key: u64, words: usize) -> (usize, u64) {
    ((key >> 38) as usize & words.wrapping_sub(1), 1 << (key >> 58))
}

/// A hasher that uses a key, which is a hash already, as its own hash.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = key(Kind::Whole, bytes);
    }

    fn write_u64(&mut self, value: u64) {
        // The table takes its buckets from both ends of the hash.
        self.0 = value ^ (value >> 32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pattern::{Comparison, parse};

    proptest! {
        #[test]
        fn finds_what_trying_every_pattern_finds(
            texts in prop::collection::vec(
                "(a|b|\\*\\*|\\*|a\\*|ab\\*|\\*b|\\*\\.b|\\*a\\*|a\\?|ab\\.a)(/(a|b|\\*\\*|\\*|ab\\*|\\*\\.b|\\*a\\*)){0,3}",
                0..12),
            paths in prop::collection::vec("[ab.]{1,4}(/[ab.]{1,4}){0,3}", 1..8),
        ) {
            let patterns: Vec<(u32, Pattern)> = (0..).zip(&texts)
                .flat_map(|(entry, text)| {
                    parse(text, Comparison::Folded).unwrap_or_default().into_iter().map(move |p| (entry, p))
                }).collect();
            let set = PatternSet::new(patterns.clone());
            for path in &paths {
                let components = Components::of(path);
                let found = set.first(&components, |_, pattern| components.are(pattern));
                let expected =
                    patterns.iter().find(|(_, pattern)| components.are(pattern)).map(|(entry, _)| *entry);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
