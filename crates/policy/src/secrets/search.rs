//! Searches that stop when the time is over.
//!
//! The fast engine never checks the time, and its worst case per byte is proportional to the size
//! of the expression. So it gets only as much text at once as it can process quickly: one piece at
//! a time if matches have a maximum length. Otherwise a lazy automaton is stepped byte by byte.

use std::{cell::RefCell, sync::OnceLock};

use regex_automata::{
    Anchored, Input, Match, MatchError, MatchKind, Span,
    hybrid::dfa::{Cache, Config, DFA},
    meta::Regex,
    nfa::thompson::{self, WhichCaptures},
    util::captures::Captures,
};
use regex_syntax::hir::{Hir, HirKind};

/// The most findings in one content: each takes memory, and a placeholder in what a reader gets.
pub(super) const MAX_FINDINGS: usize = 100_000;

/// The error that the time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeExceeded;

/// Maximum product of an expression's size and the bytes that it searches at once: less than a
/// second of work in the worst case.
const MAX_SEARCH_COST: usize = 1 << 26;
/// The corresponding maximum for finding the groups of one match.
const MAX_GROUP_SEARCH_COST: usize = 1 << 28;
/// Number of bytes between two checks of the time, where each may take long.
const CLOCK_CHECK_INTERVAL: usize = 256;

/// Estimates the number of states of an expression.
pub(super) fn weight(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Capture(capture) => weight(&capture.sub).saturating_add(2),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.saturating_add(1)).max(1);
            let times = usize::try_from(times).unwrap_or(usize::MAX);
            weight(&repetition.sub).saturating_add(1).saturating_mul(times)
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(weight).fold(1, usize::saturating_add)
        }
    }
}

/// The parts of an expression that a search in any text needs.
pub(super) struct Search<'r> {
    pub(super) regex: &'r Regex,
    pub(super) hir: &'r Hir,
    /// The estimated number of states, see [`weight`].
    pub(super) weight: usize,
    /// The lazy automata, made at their first use.
    pub(super) slow: &'r OnceLock<Option<LazyAutomata>>,
    /// The caches of the lazy automata, which are reused for the next match.
    pub(super) caches: RefCell<Option<AutomatonCaches>>,
    pub(super) overdue: &'r dyn Fn() -> bool,
}

impl Search<'_> {
    /// Returns the first match in the range of `input`.
    ///
    /// # Errors
    /// If the time is over.
    pub(super) fn find(&self, input: &Input<'_>) -> Result<Option<Match>, TimeExceeded> {
        let span = input.get_span();
        let at_once = (MAX_SEARCH_COST / self.weight.max(1)).max(1);
        if span.len() <= at_once {
            return Ok(self.regex.search(input));
        }
        match self.hir.properties().maximum_len() {
            Some(longest) if longest <= at_once / 2 => {
                self.find_by_pieces(input, at_once - longest, longest)
            }
            _ => self.find_slowly(input),
        }
    }

    /// Searches piece by piece. A match that begins in a piece ends at most `longest` bytes after
    /// it, and the engine sees the text around it, so each piece finds what a single search would.
    fn find_by_pieces(
        &self,
        input: &Input<'_>,
        piece: usize,
        longest: usize,
    ) -> Result<Option<Match>, TimeExceeded> {
        let span = input.get_span();
        for start in (span.start..span.end).step_by(piece) {
            if (self.overdue)() {
                return Err(TimeExceeded);
            }
            let next = start.saturating_add(piece);
            let end = next.saturating_add(longest).min(span.end);
            let found = self.regex.search(&input.clone().range(start..end));
            if let Some(found) = found.filter(|found| found.start() < next || end == span.end) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_slowly(&self, input: &Input<'_>) -> Result<Option<Match>, TimeExceeded> {
        let slow = self.slow.get_or_init(|| LazyAutomata::new(self.hir));
        // Without automata the time cannot be bounded.
        let slow = slow.as_ref().ok_or(TimeExceeded)?;
        let mut caches = self.caches.borrow_mut();
        let caches = caches.get_or_insert_with(|| slow.caches());
        let found = slow.find(caches, input, self.overdue).map_err(|_| TimeExceeded)?;
        Ok(found.map(|span| Match::must(0, span)))
    }

    /// Finds the groups of the match at `whole`.
    ///
    /// # Errors
    /// If that would take too long.
    pub(super) fn groups(
        &self,
        text: &[u8],
        whole: Span,
        captures: &mut Captures,
    ) -> Result<(), TimeExceeded> {
        if self.weight.saturating_mul(whole.len()) > MAX_GROUP_SEARCH_COST {
            return Err(TimeExceeded);
        }
        let input = Input::new(text).span(whole).anchored(Anchored::Yes);
        self.regex.search_captures(&input, captures);
        Ok(())
    }
}

/// Two lazy automata: one that finds the end of the first match, and one that finds the beginning
/// from there.
#[derive(Debug, Clone)]
pub(super) struct LazyAutomata {
    forward: DFA,
    reverse: DFA,
}

/// The states that the automata have built so far.
#[derive(Debug)]
pub(super) struct AutomatonCaches {
    forward: Cache,
    reverse: Cache,
}

impl LazyAutomata {
    fn caches(&self) -> AutomatonCaches {
        AutomatonCaches {
            forward: self.forward.create_cache(),
            reverse: self.reverse.create_cache(),
        }
    }

    fn new(hir: &Hir) -> Option<Self> {
        let build = |reverse: bool, kind: MatchKind| {
            let config = thompson::Config::new()
                .utf8(false)
                .reverse(reverse)
                .which_captures(WhichCaptures::None);
            let nfa = thompson::Compiler::new().configure(config).build_from_hir(hir).ok()?;
            let config = Config::new().match_kind(kind).skip_cache_capacity_check(true);
            DFA::builder().configure(config).build_from_nfa(nfa).ok()
        };
        let forward = build(false, MatchKind::LeftmostFirst)?;
        Some(Self { forward, reverse: build(true, MatchKind::All)? })
    }

    /// Finds the first match; any error means that the search was stopped.
    fn find(
        &self,
        caches: &mut AutomatonCaches,
        input: &Input<'_>,
        overdue: &dyn Fn() -> bool,
    ) -> Result<Option<Span>, MatchError> {
        let AutomatonCaches { forward, reverse } = caches;
        let input = input.clone().anchored(Anchored::No);
        let Some(end) = end_of_match(&self.forward, forward, &input, overdue)? else {
            return Ok(None);
        };
        let before = input.clone().range(input.start()..end).anchored(Anchored::Yes);
        let start = start_of_match(&self.reverse, reverse, &before, overdue)?;
        Ok(start.map(|start| Span { start, end }))
    }
}

/// Finds the end of the first match, which the automaton reports one byte later.
fn end_of_match(
    dfa: &DFA,
    cache: &mut Cache,
    input: &Input<'_>,
    overdue: &dyn Fn() -> bool,
) -> Result<Option<usize>, MatchError> {
    let mut state = dfa.start_state_forward(cache, input)?;
    let text = input.haystack();
    let mut end = None;
    let bytes = (input.start()..).zip(text.get(input.get_range()).unwrap_or_default());
    for (step, (at, byte)) in bytes.enumerate() {
        if step % CLOCK_CHECK_INTERVAL == 0 && overdue() {
            return Err(MatchError::gave_up(at));
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| MatchError::gave_up(at))?;
        if state.is_match() {
            end = Some(at);
        } else if state.is_dead() {
            return Ok(end);
        } else if state.is_quit() {
            return Err(MatchError::quit(*byte, at));
        }
    }
    let at = input.end();
    state = last(dfa, cache, state, text.get(at)).ok_or_else(|| MatchError::gave_up(at))?;
    Ok(if state.is_match() { Some(at) } else { end })
}

fn start_of_match(
    dfa: &DFA,
    cache: &mut Cache,
    input: &Input<'_>,
    overdue: &dyn Fn() -> bool,
) -> Result<Option<usize>, MatchError> {
    let mut state = dfa.start_state_reverse(cache, input)?;
    let text = input.haystack();
    let mut start = None;
    let bytes = text.get(input.get_range()).unwrap_or_default().iter();
    for (step, (at, byte)) in input.get_range().zip(bytes).rev().enumerate() {
        if step % CLOCK_CHECK_INTERVAL == 0 && overdue() {
            return Err(MatchError::gave_up(at));
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| MatchError::gave_up(at))?;
        if state.is_match() {
            start = Some(at + 1);
        } else if state.is_dead() {
            return Ok(start);
        } else if state.is_quit() {
            return Err(MatchError::quit(*byte, at));
        }
    }
    let at = input.start();
    let before = at.checked_sub(1).and_then(|at| text.get(at));
    state = last(dfa, cache, state, before).ok_or_else(|| MatchError::gave_up(at))?;
    Ok(if state.is_match() { Some(at) } else { start })
}

/// Returns the state after the byte that follows the range, or after the end of the text.
fn last(
    dfa: &DFA,
    cache: &mut Cache,
    state: regex_automata::hybrid::LazyStateID,
    byte: Option<&u8>,
) -> Option<regex_automata::hybrid::LazyStateID> {
    let next = match byte {
        Some(byte) => dfa.next_state(cache, state, *byte),
        None => dfa.next_eoi_state(cache, state),
    };
    next.ok().filter(|state| !state.is_quit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::util::syntax;

    use super::*;

    fn hir(pattern: &str) -> Hir {
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        syntax::parse_with(pattern, &syntax).unwrap()
    }

    #[test]
    fn an_expression_weighs_what_it_repeats() {
        assert_eq!(weight(&hir("[a-z]")), 1);
        assert!(weight(&hir("(?:[a-z]{1,40}[0-9]?){30}!")) > 1200);
        assert!(weight(&hir("(?:(?:(?:[ab]{1000}){1000}){1000}){1000}")) > 1 << 40);
    }

    #[test]
    fn a_search_is_given_up_in_the_middle() {
        let hir = hir("(?:[a-z]{1,40}[0-9]?){30}!.*");
        let regex = Regex::builder().build_from_hir(&hir).unwrap();
        let looks = std::cell::Cell::new(0);
        let overdue = || {
            looks.set(looks.get() + 1);
            looks.get() > 3
        };
        let (slow, weight) = (OnceLock::new(), weight(&hir));
        let caches = RefCell::default();
        let search =
            Search { regex: &regex, hir: &hir, weight, slow: &slow, caches, overdue: &overdue };
        let text = "abcdefghij".repeat(100_000);
        assert_eq!(search.find(&Input::new(text.as_bytes())), Err(TimeExceeded));
        assert_eq!(looks.get(), 4);
    }

    proptest! {
        /// All three methods find the same.
        #[test]
        fn pieces_and_lazy_automata_find_what_the_whole_finds(
            text in "[ab=\n -]{0,80}",
            from in 0_usize..20,
            piece in 1_usize..9,
        ) {
            for pattern in [
                "a=[ab]{1,3}",
                r"\b[ab]{2,4}?\b",
                "(?:a|ab)(?:b|=){0,3}",
                "(?m)^a{0,2}b$",
                r"-{2}b?\s",
                r"a[\s\S]*?b",
                "b+=a*",
                r"(?m)^\s*a.*$",
                r"\Aa|b\z",
            ] {
                let hir = hir(pattern);
                let regex = Regex::builder().build_from_hir(&hir).unwrap();
                let slow = OnceLock::new();
                let caches = RefCell::default();
                let overdue = &|| false;
                let search = Search { regex: &regex, hir: &hir, weight: 1, slow: &slow, caches, overdue };
                let text = text.as_bytes();
                let input = Input::new(text).range(from.min(text.len())..text.len());
                let whole = regex.search(&input);
                // The second run uses the caches of the first.
                for _ in 0..2 {
                    prop_assert_eq!(search.find_slowly(&input).unwrap(), whole, "{}", pattern);
                }
                if let Some(longest) = hir.properties().maximum_len() {
                    let found = search.find_by_pieces(&input, piece, longest).unwrap();
                    prop_assert_eq!(found, whole, "{}", pattern);
                }
            }
        }
    }
}
