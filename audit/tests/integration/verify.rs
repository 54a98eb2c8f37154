//! Tests with logs that are too large to commit.

use std::{cell::RefCell, path::Path, process::Command};

use portcullis_audit::{
    Chain, DamageKind, Directory, Draft, Hash, Kind, MAX_LINE, Position, Prepared, Progress,
    Reader, Report, SEGMENT_RECORDS, Verifier,
};

use crate::support::{Log, Memory, key, of_lines};

fn verify(files: &Memory) -> Report {
    Verifier::new(files).run().unwrap()
}

fn damages(files: &Memory) -> Vec<String> {
    verify(files).damages.iter().map(ToString::to_string).collect()
}

/// Makes the log of 65,538 records of FORMAT.md, "A long log".
fn long() -> Log {
    let mut log = Log::default();
    for _ in 0..SEGMENT_RECORDS + 2 {
        log.push_at(Kind::Decision, Draft::default(), "2026-11-21T08:00:00.000000Z");
    }
    log
}

#[test]
fn a_log_goes_on_in_the_next_segment() {
    let log = long();
    let seen = RefCell::new(Vec::new());
    let report = Verifier::new(&log.files).progress(|at| seen.borrow_mut().push(at)).run().unwrap();
    assert!(report.is_valid() && report.complete);
    assert_eq!((report.records, report.segments), (65_538, 2));
    let head = report.head.unwrap();
    assert_eq!(head, log.receipts[65_537]);
    assert_eq!(
        head.leaf.to_string(),
        "ba5449a15bb49171f342eeb08a2d031f28be4101ca732617a2e31100d45ce9ce",
        "the head that FORMAT.md gives for its long log"
    );
    let total: usize = log.files.0.values().map(Vec::len).sum();
    let total = total as u64;
    assert_eq!(seen.borrow().last(), Some(&Progress { bytes: total, total }));
    let offset = log.files.0["seg-000001.jsonl"].len() as u64;
    assert_eq!(report.intact, Position { records: 65_538, segment: 1, offset });

    let mut reader = Reader::new(&log.files, 65_534);
    for seq in 65_534..65_538 {
        let entry = reader.next().unwrap().unwrap();
        assert_eq!((entry.seq(), entry.record().unwrap().seq), (seq, seq));
    }
    assert_eq!(reader.next().unwrap(), None);
}

#[test]
fn segments_have_exactly_their_records() {
    let log = long();
    let split = |files: &Memory, at: usize| -> (Vec<u8>, Vec<u8>) {
        let first = &files.0["seg-000000.jsonl"];
        let mut newlines = first.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let (offset, _) = newlines.nth(at - 1).unwrap();
        (first[..=offset].to_vec(), first[offset + 1..].to_vec())
    };

    let mut moved = log.files.clone();
    let (first, rest) = split(&moved, 65_535);
    let second = [&rest[..], &moved.0["seg-000001.jsonl"]].concat();
    moved.0.insert("seg-000000.jsonl".to_owned(), first);
    moved.0.insert("seg-000001.jsonl".to_owned(), second.clone());
    assert_eq!(
        damages(&moved)[..2],
        [
            "short-segment: seg-000000.jsonl line 65535 (record 65535): the segment ends after 65535 of 65536 records, but is not the last",
            "wrong-sequence: seg-000001.jsonl line 1 (record 65536): the line is record 65535: it was here before, or is out of order",
        ]
    );

    let mut joined = log.files.clone();
    let second = joined.0.remove("seg-000001.jsonl").unwrap();
    joined.0.get_mut("seg-000000.jsonl").unwrap().extend(&second);
    assert_eq!(
        damages(&joined),
        [
            "long-segment: seg-000000.jsonl line 65537 (record 65536): the segment goes on after 65536 records"
        ]
    );

    let mut gap = log.files.clone();
    gap.0.insert("seg-999999999999.jsonl".to_owned(), Vec::new());
    assert_eq!(
        damages(&gap),
        [
            "short-segment: seg-000001.jsonl line 2 (record 65538): the segment ends after 2 of 65536 records, but is not the last",
            "missing-segment: seg-000002.jsonl (record 131072): 999999999997 segments from this one on are missing",
        ]
    );

    let mut full = log.files.clone();
    full.0.insert("seg-000001.jsonl".to_owned(), Vec::new());
    assert!(verify(&full).is_valid(), "a gateway died after it made a segment");
}

#[test]
fn a_line_that_never_ends_is_not_kept_in_memory() {
    let mut lines = Log::six().lines();
    lines[3] = vec![b' '; 40 * MAX_LINE];
    assert_eq!(
        damages(&of_lines(&lines)),
        ["long-line: seg-000000.jsonl line 4 (record 3): the line is longer than 1048576 bytes"]
    );
}

/// A sparse file may have as many bytes as take an hour to read, or more than any segment.
#[test]
fn a_segment_that_never_ends_is_left() {
    let sparse = |directory: &Path, name: &str, lines: &[u8], length: u64| {
        write(&directory.join(name), lines);
        let file = std::fs::OpenOptions::new();
        #[expect(clippy::disallowed_methods, reason = "the test's own file")]
        let file = { file }.write(true).open(directory.join(name)).unwrap();
        file.set_len(length).unwrap();
    };
    let lines = Log::six().files.0.remove("seg-000000.jsonl").unwrap();
    let report = on_disk(|directory| {
        sparse(directory, "seg-000000.jsonl", &lines, 1 << 35);
        sparse(directory, "seg-000001.jsonl", b"", 1 << 35);
    });
    assert_eq!(
        report.damages.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "long-line: seg-000000.jsonl line 7 (record 6): the line is longer than 1048576 bytes",
            "long-line: seg-000001.jsonl line 1 (record 65536): the line is longer than 1048576 bytes",
        ]
    );
    assert_eq!((report.intact.records, report.intact.offset), (6, lines.len() as u64));
    assert!(report.bytes < 1 << 30);

    // The file continues past the maximum number of records.
    let log = long().files.0.into_values().collect::<Vec<_>>().concat();
    for (length, kind, intact) in
        [(1 << 35, DamageKind::LongSegment, SEGMENT_RECORDS), (1 << 40, DamageKind::BadSegment, 0)]
    {
        let report = on_disk(|directory| sparse(directory, "seg-000000.jsonl", &log, length));
        let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(report.intact.records, intact);
    }
}

#[test]
fn the_longest_line_is_read() {
    let record = |length| {
        let draft = Draft { reason: Some("x".repeat(length)), ..Draft::default() };
        Prepared::new(Kind::Decision, &draft, [7; 16])
    };
    let most = (MAX_LINE - 1000..MAX_LINE).rev().find_map(|length| record(length).ok()).unwrap();
    let mut log = Log::six();
    let file = log.files.0.get_mut("seg-000000.jsonl").unwrap();
    log.chain.append(&most, "2026-11-21T09:00:00.000000Z", file);
    log.read("after");
    assert!(verify(&log.files).is_valid());
}

#[test]
fn a_ruin_does_not_fill_the_report() {
    let lines: Vec<_> = (0..5000).map(|_| "ruin").collect();
    let report = verify(&of_lines(lines));
    assert!(report.stopped);
    assert_eq!(report.damages.len(), Report::MAX_DAMAGES);
    assert_eq!(report.damages[0].kind, DamageKind::MalformedRecord);
    assert_eq!(report.intact.records, 0);
}

#[test]
fn policies_do_not_fill_the_memory() {
    let mut log = Log::default();
    let hash = |number: usize| Hash::of(&number.to_be_bytes()).to_string();
    let names = |name: String| Draft { policy_sha256: Some(name), ..Draft::default() };
    // A `start` is parsed differently from most records.
    log.push(Kind::Start, names("ż".repeat(1000)));
    for number in 0..Report::MAX_POLICIES - 1 {
        log.push(Kind::Decision, names(hash(number)));
        log.push(Kind::Decision, names(format!("{number}{}", "x".repeat(1000))));
    }
    log.push(Kind::Decision, names(hash(0)));
    let report = verify(&log.files);
    assert!(report.is_valid() && !report.more_policies);
    assert_eq!(report.policies.len(), Report::MAX_POLICIES);
    assert_eq!(report.policies["ż".repeat(64).as_str()], 0);
    assert_eq!(report.policies[&hash(7)], 15);

    log.push(Kind::Decision, names(hash(Report::MAX_POLICIES)));
    let report = verify(&log.files);
    assert!(report.is_valid() && report.more_policies);
    assert_eq!(report.policies.len(), Report::MAX_POLICIES);
}

#[test]
fn every_changed_byte_is_damage_or_another_head() {
    let log = Log::six();
    let bytes = &log.files.0["seg-000000.jsonl"];
    let head = log.receipts.last().unwrap();
    for at in 0..bytes.len() {
        let mut files = log.files.clone();
        files.0.get_mut("seg-000000.jsonl").unwrap()[at] ^= 1;
        let report = Verifier::new(&files).expect(head.seq, head.leaf).run().unwrap();
        assert!(!report.is_valid(), "byte {at}");
    }
}

#[test]
fn a_receipt_is_found_wherever_the_log_was_cut() {
    let log = Log::six();
    let bytes = &log.files.0["seg-000000.jsonl"];
    let head = log.receipts.last().unwrap();
    for length in 0..bytes.len() {
        let cut = Memory([("seg-000000.jsonl".to_owned(), bytes[..length].to_vec())].into());
        let report = Verifier::new(&cut).expect(head.seq, head.leaf).run().unwrap();
        assert!(!report.is_valid(), "length {length}");
        assert!(report.intact.offset <= length as u64);
        let whole = bytes[..length].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(report.intact.records, whole as u64);
    }
}

#[test]
fn a_reader_waits_for_the_rest_of_a_line() {
    use std::{fs, io::Write};
    let dir = tempfile::tempdir().unwrap();
    let source = portcullis_audit::Directory::new(dir.path());
    let mut reader = Reader::new(&source, 0);
    assert_eq!(reader.next().unwrap(), None, "no segment yet");
    let lines = Log::six().lines();
    let mut file = fs::OpenOptions::new();
    #[expect(clippy::disallowed_methods, reason = "the test's own file")]
    let mut file =
        file.create(true).append(true).open(dir.path().join("seg-000000.jsonl")).unwrap();
    for line in &lines {
        file.write_all(&line[..20]).unwrap();
        assert_eq!(reader.next().unwrap(), None);
        file.write_all(&line[20..]).unwrap();
        assert_eq!(reader.next().unwrap(), None);
        file.write_all(b"\n").unwrap();
        assert_eq!(reader.next().unwrap().unwrap().bytes, *line);
    }
}

/// Verifies the log of six records in a directory after `change`.
fn on_disk(change: impl FnOnce(&Path)) -> Report {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in &Log::six().files.0 {
        write(&dir.path().join(name), bytes);
    }
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(dir.path().join("checkpoints"))
        .unwrap();
    change(dir.path());
    Verifier::new(&Directory::new(dir.path())).run().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the test's own file")]
fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_is_no_file_is_neither_waited_for_nor_followed() {
    assert!(on_disk(|_| {}).is_valid());
    let pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let link = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    for (name, kind) in [
        ("checkpoint", DamageKind::BadCheckpoint),
        ("checkpoints/3", DamageKind::BadCheckpoint),
        ("key.vkey", DamageKind::BadCheckpoint),
        ("roots", DamageKind::WrongRoot),
        ("lock", DamageKind::UnexpectedFile),
        ("seg-000001.jsonl", DamageKind::UnexpectedFile),
    ] {
        for make in [&pipe as &dyn Fn(&Path), &link] {
            let report = on_disk(|directory| {
                if name.starts_with("checkpoint") {
                    write(&directory.join("key.vkey"), format!("{}\n", key(1).public()).as_bytes());
                }
                make(&directory.join(name));
            });
            let first = report.damages.first().map(|damage| (damage.kind, damage.segment.as_str()));
            assert_eq!(first, Some((kind, name)), "{report:#?}");
            let seq = report.damages.first().and_then(|damage| damage.seq);
            assert_eq!(seq, (name == "checkpoints/3").then_some(2));
        }
    }
}

#[test]
fn roots_without_an_end_are_not_kept_in_memory() {
    let report = on_disk(|directory| {
        write(&directory.join("roots"), b"");
        let file = std::fs::OpenOptions::new();
        #[expect(clippy::disallowed_methods, reason = "the test's own file")]
        let file = { file }.write(true).open(directory.join("roots")).unwrap();
        file.set_len(6 << 30).unwrap();
    });
    assert!(report.is_valid(), "{report:#?}");
}

/// The lower half of the lines' XXH64, by libxxhash.
const SUM: u32 = 0x5e4a_d413;

/// Makes a frame of one uncompressed block (RFC 8878), with `size` in its header and `sum` at its
/// end.
fn frame(content: &[u8], size: u32, sum: Option<u32>) -> Vec<u8> {
    let descriptor = 0xa0 | u8::from(sum.is_some()) << 2;
    let block = u32::try_from(content.len()).unwrap() << 3 | 1;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, descriptor];
    frame.extend(size.to_le_bytes());
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(content);
    frame.extend(sum.into_iter().flat_map(u32::to_le_bytes));
    frame
}

#[test]
fn a_compressed_segment_is_one_whole_frame_or_damage() {
    let lines = Log::six().files.0.remove("seg-000000.jsonl").unwrap();
    let size = u32::try_from(lines.len()).unwrap();
    let packed = |bytes: &[u8]| {
        on_disk(|directory| {
            #[expect(clippy::disallowed_methods, reason = "the test's own file")]
            std::fs::remove_file(directory.join("seg-000000.jsonl")).unwrap();
            write(&directory.join("seg-000000.jsonl.zst"), bytes);
        })
    };
    let whole = frame(&lines, size, None);
    for right in [whole.clone(), frame(&lines, size, Some(SUM))] {
        let report = packed(&right);
        assert!(report.is_valid() && report.records == 6, "{report:#?}");
    }
    // A window of terabytes would have to be held in memory.
    let mut wide = whole.clone();
    wide[4] = 0x80;
    wide.insert(5, 0xff);
    let no_frame = "is no frame that says its size and has a small window";
    let mut reserved = whole.clone();
    reserved[9] |= 6;
    for (wrong, why) in [
        (frame(&lines, size, Some(SUM + 1)), "has another checksum than it says"),
        (frame(&lines, size + 1, None), "ends before the size it says"),
        (frame(&lines, size - 1, None), "goes on after the size it says"),
        ([&whole[..], b"x"].concat(), "is followed by something else"),
        ([&whole[..], &whole[..]].concat(), "is followed by something else"),
        (whole[..whole.len() - 1].to_vec(), "cannot be decoded"),
        (whole[..12].to_vec(), "cannot be decoded"),
        (reserved, "cannot be decoded"),
        (wide, no_frame),
        (lines.clone(), no_frame),
        (Vec::new(), no_frame),
    ] {
        let report = packed(&wrong);
        let [damage] = &report.damages[..] else { panic!("{why}: {report:#?}") };
        assert_eq!((damage.kind, damage.seq), (DamageKind::BadSegment, Some(0)), "{why}");
        assert!(damage.segment == "seg-000000.jsonl" && damage.detail.contains(why), "{damage}");
        assert!(!report.complete && report.head.is_none());
    }
}

#[test]
fn an_empty_chain_has_no_head() {
    let report = verify(&Memory::default());
    assert!(report.is_valid() && report.complete);
    assert_eq!((report.head, report.records), (None, 0));
    assert_eq!(Chain::new().prev(), Hash::ZERO);
}
