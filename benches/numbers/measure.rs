//! Interleaved rounds and their medians.
//!
//! The speed of a machine that others use too varies; two contenders that take
//! turns in short rounds see the same machine, and medians ignore the rounds
//! that were interrupted.

use std::time::{Duration, Instant};

use crate::Outcome;

/// Times of one contender in nanoseconds, sorted.
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(1, 2)
    }

    /// Returns the value below which `part` of `whole` parts lie.
    pub(crate) fn at(&self, part: usize, whole: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * part / whole).copied().unwrap_or(f64::NAN)
    }

    /// The middle half, in thousands: `6.1–6.9`.
    pub(crate) fn quartiles(&self, unit: f64) -> String {
        format!("{:.2}–{:.2}", self.at(1, 4) / unit, self.at(3, 4) / unit)
    }
}

/// Two contenders that took turns.
pub(crate) struct Pair {
    pub(crate) ours: Series,
    pub(crate) bare: Series,
    /// Ours by bare, round for round.
    pub(crate) ratio: Series,
}

/// Lets two contenders take turns for `rounds` rounds; each gives the time of
/// one operation in nanoseconds.
pub(crate) fn interleave(
    rounds: usize,
    mut ours: impl FnMut() -> Outcome<f64>,
    mut bare: impl FnMut() -> Outcome<f64>,
) -> Outcome<Pair> {
    let (mut one, mut other) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..rounds {
        // The second one finds warmer caches, so each goes second half the
        // time.
        if round % 2 == 0 {
            one.push(ours()?);
            other.push(bare()?);
        } else {
            other.push(bare()?);
            one.push(ours()?);
        }
    }
    let ratio = one.iter().zip(&other).map(|(one, other)| one / other).collect();
    Ok(Pair { ours: Series::new(one), bare: Series::new(other), ratio: Series::new(ratio) })
}

/// The time of one of `count` runs of `work`, in nanoseconds.
pub(crate) fn each(count: u32, mut work: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let start = Instant::now();
    for _ in 0..count {
        work()?;
    }
    Ok(nanoseconds(start.elapsed()) / f64::from(count))
}

pub(crate) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Prints one number: its name, its value, its bound.
pub(crate) fn report(subject: &str, value: f64, unit: &str, bound: Bound, details: &str) {
    let (reached, word, bound) = match bound {
        Bound::AtMost(bound) => (value <= bound, "at most", bound),
        Bound::AtLeast(bound) => (value >= bound, "at least", bound),
    };
    let verdict = if reached { "reached" } else { "MISSED" };
    println!("{subject:<10} {value:>8.2} {unit:<22} {word} {bound:<6} {verdict:<8} {details}");
}

/// Bound of a number.
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}
