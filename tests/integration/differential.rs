//! Comparison of the two verifiers, gateways and repairs on thousands of changed logs.
//!
//! Every disagreement is an error of one of them by `audit/FORMAT.md`. A disagreement that was
//! found and fixed goes to `tests/corpus/audit`, whose logs are tried first, unchanged, and then
//! changed like the vectors. `PORTCULLIS_TEST_BUDGET` multiplies the number of cases (`tests/run.sh
//! full`), `PORTCULLIS_TEST_SEED` is another seed.

mod case;
mod lines;
mod python_verifier;
mod states;

use std::path::Path;

use case::{Log, VerifierArguments};
use python_verifier::{Second, first, holds, program};

use crate::{common::budget, proof::proof_of_line, seeded_random::Random};

/// Cases in every run: a few seconds on one core.
const CASES: u64 = 2_500;
/// Every case of this many is given to the program, too, and not only to its library.
const SAMPLE: u64 = 50;

/// Cases of a log of two segments, each of which takes seconds.
const LONG_CASES: u64 = 3;

fn seed() -> u64 {
    std::env::var("PORTCULLIS_TEST_SEED").map_or(20_261_124, |seed| seed.parse().unwrap())
}

#[test]
fn both_verifiers_say_the_same_of_every_log() {
    let (seeds, place) = (case::seeds(), case::place());
    let mut second = Second::start();
    let (mut results, mut disagreements) = ([0; 3], Vec::new());
    let mut ask = |number: u64, name: &str, log: &Log, asked: &VerifierArguments| {
        let directory = case::path(place.path(), number);
        std::fs::create_dir(&directory).unwrap();
        log.write(&directory);
        let answer = second.answer(&directory, asked);
        let one = first(&directory, asked);
        let own =
            if number.is_multiple_of(SAMPLE) { program(&directory, asked) } else { one.clone() };
        if one != answer || own != one {
            let case = format!("case {number}, {name}: {asked:?}");
            disagreements
                .push(format!("{case}\n  library {one}\n  program {own}\n  verify.py {answer}"));
        }
        let kind = ["intact", "damage", "none"].iter().position(|word| answer.get(word).is_some());
        results[kind.unwrap()] += 1;
        std::fs::remove_dir_all(&directory).unwrap();
    };
    for (number, (name, log)) in (0..).zip(&seeds) {
        ask(number, name, log, &VerifierArguments::default());
    }
    let mut random = Random::new(seed());
    for number in 0..CASES * budget() {
        let at = usize::try_from(random.below(seeds.len() as u64)).unwrap();
        let (name, mut log) = seeds[at].clone();
        let asked = log.change(&mut random, &seeds);
        ask(seeds.len() as u64 + number, &name, &log, &asked);
    }
    disagreements.truncate(20);
    assert!(
        disagreements.is_empty(),
        "PORTCULLIS_TEST_SEED={}\n{}",
        seed(),
        disagreements.join("\n")
    );
    let [intact, damaged, none] = results;
    assert!(intact * 40 > damaged && damaged > intact && none * 20 < damaged, "{results:?}");
}

/// The same of proofs: the line of each is signed, and may be no record.
#[test]
fn both_verifiers_say_the_same_of_every_line_of_a_proof() {
    let (seeds, key) = (case::seeds(), case::key());
    let mut second = Second::start();
    let mut results = [0; 2];
    let mut ask = |name: &str, line: &[u8]| {
        let proof = proof_of_line(&key, line, 0);
        let answer = second.holds(&proof, &key.public());
        let shown = line.escape_ascii();
        assert_eq!(holds(&proof, &key.public()), answer, "{name}, {}: {shown}", seed());
        results[usize::from(answer)] += 1;
    };
    for (name, log) in &seeds {
        log.segment().split(|byte| *byte == b'\n').for_each(|line| ask(name, line));
    }
    let mut random = Random::new(seed());
    for _ in 0..CASES * budget() {
        let at = usize::try_from(random.below(seeds.len() as u64)).unwrap();
        let (name, log) = &seeds[at];
        let first = log.segment().split_inclusive(|byte| *byte == b'\n').next();
        let changed = lines::change(first.unwrap_or_default(), &mut random);
        ask(name, changed.split(|byte| *byte == b'\n').next().unwrap_or_default());
    }
    assert!(results[0] > 200 && results[1] > 200, "{results:?}");
}

/// The same of a log whose first segment is full, and of its compressed form.
#[test]
fn both_verifiers_say_the_same_of_logs_of_several_segments() {
    let (seeds, place, long) = (case::seeds(), case::place(), case::long());
    let mut second = Second::start();
    let mut random = Random::new(seed());
    let mut packed = 0;
    for number in 0..LONG_CASES + budget() {
        let mut log = long.clone();
        // As it is, first.
        let asked = if number == 0 {
            VerifierArguments::default()
        } else {
            log.change(&mut random, &seeds)
        };
        let ask = |log: &Log, by: &mut dyn FnMut(&Path) -> serde_json::Value| {
            let directory = case::path(place.path(), number);
            std::fs::create_dir(&directory).unwrap();
            log.write(&directory);
            let answer = by(&directory);
            std::fs::remove_dir_all(&directory).unwrap();
            answer
        };
        let answer = ask(&log, &mut |directory| second.answer(directory, &asked));
        let case = format!("case {number}, PORTCULLIS_TEST_SEED={}: {asked:?}", seed());
        assert_eq!(ask(&log, &mut |directory| first(directory, &asked)), answer, "{case}");
        assert!(
            number > 0 || answer["intact"]["signed"] == answer["intact"]["records"],
            "{answer}"
        );
        // The second verifier reads no compressed segment.
        if log.pack() {
            packed += 1;
            assert_eq!(ask(&log, &mut |directory| program(directory, &asked)), answer, "{case}");
        }
    }
    assert!(packed > 0);
}
