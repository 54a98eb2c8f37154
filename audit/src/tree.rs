//! The Merkle tree over the records' leaf hashes (RFC 6962, section 2): its root hash, inclusion
//! proofs and consistency proofs.
//!
//! Pure: hashes of subtrees come from the caller, from a file or computed from the log.

use crate::{Hash, SEGMENT_RECORDS};

/// Levels of the tree below the root of a full segment.
pub const SEGMENT_LEVEL: u32 = SEGMENT_RECORDS.trailing_zeros();

impl Hash {
    /// Computes the hash of the tree of two subtrees: SHA-256 over a one byte and both.
    pub fn node(left: &Self, right: &Self) -> Self {
        let mut bytes = [1; 65];
        let (_, rest) = bytes.split_at_mut(1);
        let (first, second) = rest.split_at_mut(32);
        first.copy_from_slice(left.as_bytes());
        second.copy_from_slice(right.as_bytes());
        Hash::of(&bytes)
    }
}

/// The right edge of a tree: the roots of its complete subtrees, largest first. More leaves can be
/// added with these alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    hashes: Vec<Hash>,
}

impl Frontier {
    /// Returns the edge of the empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the edge of a tree of `size` leaves; `None` if the number of `hashes` is wrong.
    pub fn from_parts(size: u64, hashes: Vec<Hash>) -> Option<Self> {
        (hashes.len() == size.count_ones() as usize).then_some(Self { size, hashes })
    }

    /// Returns the number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the roots of its complete subtrees, largest first.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: Hash) {
        // A subtree of one leaf always fits.
        let _fits = self.push_subtree(0, leaf);
    }

    /// Adds a complete subtree of 2^`level` leaves. False, with nothing added, if no such subtree
    /// fits there.
    #[must_use]
    pub fn push_subtree(&mut self, level: u32, root: Hash) -> bool {
        let fits = level < 64 && self.size.trailing_zeros() >= level;
        let size = 1_u64.checked_shl(level).and_then(|more| self.size.checked_add(more));
        let (true, Some(size)) = (fits, size) else { return false };
        let mut root = root;
        // Each carry of the sum joins two subtrees of equal size.
        let carries = (self.size >> level).trailing_ones();
        for _carry in 0..carries {
            let Some(left) = self.hashes.pop() else { return false };
            root = Hash::node(&left, &root);
        }
        self.hashes.push(root);
        self.size = size;
        true
    }

    /// Returns the root hash.
    pub fn root(&self) -> Hash {
        let mut hashes = self.hashes.iter().rev();
        match hashes.next() {
            None => Hash::of(b""),
            Some(last) => hashes.fold(*last, |right, left| Hash::node(left, &right)),
        }
    }
}

/// Computes the root hash over `leaves`.
pub fn root_of(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::new();
    leaves.iter().for_each(|leaf| frontier.push(*leaf));
    frontier.root()
}

/// A part of a tree: the leaves from `start` up to `end`, exclusive.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn len(self) -> u64 {
        self.end - self.start
    }

    /// Splits it as RFC 6962 does: at the largest power of two below its length.
    fn split(self) -> (Self, Self) {
        let middle = self.start + self.len().div_ceil(2).next_power_of_two();
        (Self { end: middle, ..self }, Self { start: middle, ..self })
    }
}

/// A generator of proofs. `subtree` returns the root of the complete subtree number `index` of
/// 2^`level` leaves.
pub struct Prover<F> {
    subtree: F,
}

impl<E, F: FnMut(u32, u64) -> Result<Hash, E>> Prover<F> {
    /// Makes a generator from the roots that `subtree` returns.
    pub fn new(subtree: F) -> Self {
        Self { subtree }
    }

    fn root(&mut self, span: Span) -> Result<Hash, E> {
        if span.len().is_power_of_two() {
            let level = span.len().trailing_zeros();
            return (self.subtree)(level, span.start >> level);
        }
        let (left, right) = span.split();
        Ok(Hash::node(&self.root(left)?, &self.root(right)?))
    }

    /// Returns the root hash of the first `size` leaves, at least one.
    ///
    /// # Errors
    ///
    /// The errors of `subtree`.
    pub fn root_at(&mut self, size: u64) -> Result<Hash, E> {
        self.root(Span { start: 0, end: size.max(1) })
    }

    /// Returns the proof that leaf `index` is in the tree of `size` leaves, nearest hash first (RFC
    /// 6962, section 2.1.1). `index` must be below `size`.
    ///
    /// # Errors
    ///
    /// The errors of `subtree`.
    pub fn inclusion(&mut self, index: u64, size: u64) -> Result<Vec<Hash>, E> {
        let mut proof = Vec::new();
        let mut span = Span { start: 0, end: size };
        while span.len() > 1 {
            let (left, right) = span.split();
            let other = if index < right.start { right } else { left };
            span = if index < right.start { left } else { right };
            proof.push(self.root(other)?);
        }
        proof.reverse();
        Ok(proof)
    }

    /// Returns the proof that the tree of `old` leaves is a prefix of that of `new` ones (RFC 6962,
    /// section 2.1.2). `old` must be above zero and not above `new`.
    ///
    /// # Errors
    ///
    /// The errors of `subtree`.
    pub fn consistency(&mut self, old: u64, new: u64) -> Result<Vec<Hash>, E> {
        let mut proof = Vec::new();
        let mut span = Span { start: 0, end: new };
        // True while the verifier knows the root of the rest of the old tree.
        let mut known = true;
        while span.end > old {
            let (left, right) = span.split();
            if old <= right.start {
                proof.push(self.root(right)?);
                span = left;
            } else {
                proof.push(self.root(left)?);
                (span, known) = (right, false);
            }
        }
        if !known {
            proof.push(self.root(span)?);
        }
        proof.reverse();
        Ok(proof)
    }
}

/// Computes the root hash of a tree of `size` leaves in which `leaf` is number `index`, according
/// to `proof`; `None` if it cannot be a proof of that.
pub fn root_from_inclusion(leaf: Hash, index: u64, size: u64, proof: &[Hash]) -> Option<Hash> {
    if index >= size {
        return None;
    }
    let (mut number, mut last, mut root) = (index, size - 1, leaf);
    for hash in proof {
        if last == 0 {
            return None;
        }
        if number & 1 == 1 || number == last {
            root = Hash::node(hash, &root);
            while number & 1 == 0 && number != 0 {
                number >>= 1;
                last >>= 1;
            }
        } else {
            root = Hash::node(&root, hash);
        }
        number >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(root)
}

/// True if `proof` shows that the tree of `old` leaves with the root `old_root` is a prefix of the
/// tree of `new` leaves with the root `new_root`.
pub fn is_consistent(old: u64, old_root: Hash, new: u64, new_root: Hash, proof: &[Hash]) -> bool {
    if old == 0 || old >= new {
        // The empty tree is a prefix of every tree, and every tree of itself.
        let empty = old == 0 && old_root == Hash::of(b"");
        return proof.is_empty() && (empty || (old == new && old_root == new_root));
    }
    let mut hashes = proof.iter();
    let (mut number, mut last) = (old - 1, new - 1);
    while number & 1 == 1 {
        number >>= 1;
        last >>= 1;
    }
    let first = if number == 0 { Some(&old_root) } else { hashes.next() };
    let Some(first) = first else { return false };
    let (mut before, mut after) = (*first, *first);
    for hash in hashes {
        if last == 0 {
            return false;
        }
        if number & 1 == 1 || number == last {
            before = Hash::node(hash, &before);
            after = Hash::node(hash, &after);
            while number & 1 == 0 && number != 0 {
                number >>= 1;
                last >>= 1;
            }
        } else {
            after = Hash::node(&after, hash);
        }
        number >>= 1;
        last >>= 1;
    }
    last == 0 && before == old_root && after == new_root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|number| Hash::leaf(&number.to_be_bytes())).collect()
    }

    fn prover(leaves: &[Hash]) -> Prover<impl FnMut(u32, u64) -> Result<Hash, ()>> {
        Prover::new(move |level, index: u64| {
            let (first, count) = ((index << level) as usize, 1_usize << level);
            Ok(root_of(leaves.get(first..first + count).ok_or(())?))
        })
    }

    #[test]
    fn roots_of_rfc_6962_test_vectors() {
        // From the certificate transparency reference implementation.
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2)
                .map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2).unwrap(), 16).unwrap())
                .collect()
        };
        let inputs = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"];
        let leaves: Vec<_> = inputs.iter().map(|text| Hash::leaf(&hex(text))).collect();
        let roots = [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        ];
        for (count, root) in roots.iter().enumerate() {
            assert_eq!(root_of(&leaves[..count]).to_string(), *root, "{count}");
        }
    }

    #[test]
    fn every_proof_of_small_trees_holds_and_no_other() {
        let all = leaves(33);
        for size in 1..=33_u64 {
            let mut prover = prover(&all);
            let root = root_of(&all[..size as usize]);
            assert_eq!(prover.root_at(size), Ok(root));
            for index in 0..size {
                let leaf = all[index as usize];
                let proof = prover.inclusion(index, size).unwrap();
                assert_eq!(root_from_inclusion(leaf, index, size, &proof), Some(root));
                assert_ne!(root_from_inclusion(Hash::ZERO, index, size, &proof), Some(root));
                let mut longer = proof.clone();
                longer.push(Hash::ZERO);
                assert_ne!(root_from_inclusion(leaf, index, size, &longer), Some(root));
                if let Some((_, shorter)) = proof.split_last() {
                    assert_ne!(root_from_inclusion(leaf, index, size, shorter), Some(root));
                }
                assert_eq!(root_from_inclusion(leaf, size, size, &proof), None);
            }
            for old in 1..=size {
                let before = root_of(&all[..old as usize]);
                let proof = prover.consistency(old, size).unwrap();
                assert!(is_consistent(old, before, size, root, &proof), "{old} {size}");
                assert!(!is_consistent(old, Hash::ZERO, size, root, &proof));
                assert!(!is_consistent(old, before, size, Hash::ZERO, &proof));
                let longer = [&proof[..], &[Hash::ZERO]].concat();
                assert!(!is_consistent(old, before, size, root, &longer));
                if old < size {
                    assert!(!is_consistent(old, before, size, root, &proof[1..]));
                }
            }
        }
    }

    #[test]
    fn subtrees_are_as_good_as_their_leaves() {
        let all = leaves(21);
        let mut edge = Frontier::new();
        assert!(edge.push_subtree(3, root_of(&all[..8])));
        assert!(edge.push_subtree(3, root_of(&all[8..16])));
        assert!(edge.push_subtree(2, root_of(&all[16..20])));
        let before = edge.clone();
        assert!(!edge.push_subtree(3, Hash::ZERO), "nothing of 8 begins at 20");
        assert_eq!(edge, before);
        edge.push(all[20]);
        assert_eq!(edge.root(), root_of(&all));
        let again = Frontier::from_parts(edge.size(), edge.hashes().to_vec());
        assert_eq!(again, Some(edge.clone()));
        assert_eq!(Frontier::from_parts(20, edge.hashes().to_vec()), None);
    }
}
