//! Reads of 4 KiB through the gateway in this process, record written, against
//! opening, reading and closing the file.

use std::{cell::RefCell, hint::black_box};

use portcullis::{
    gateway::Client,
    model::{Encoding, LineRange, request::Read},
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{
    Outcome,
    bare::Bare,
    measure::{Bound, each, interleave, report},
    world::{self, CONTENT, FILES, World},
};

const ROUNDS: usize = 500;
const BATCH: u32 = FILES as u32;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let (gateway, session) = (world.gateway_without_rules()?, world::session()?);
    let requests = (0..FILES)
        .map(|number| {
            let (range, encoding) = (LineRange::default(), Encoding::Text);
            Ok(Read { path: world::path(number)?, range, encoding })
        })
        .collect::<Outcome<Vec<_>>>()?;
    let mut through_gateway = requests.iter().cycle();
    let names: Vec<_> = (0..FILES).map(world::file).collect();
    let mut raw = names.iter().cycle();
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = openat(CWD, gateway.workspace().root(), flags, Mode::empty())?;
    let mut buffer = vec![0_u8; CONTENT + 1];
    let pair = interleave(
        ROUNDS,
        || {
            each(BATCH, || {
                let read = through_gateway.next().ok_or("no request")?;
                black_box(gateway.handle(&session, read, Client::default())?);
                Ok(())
            })
        },
        || {
            each(BATCH, || {
                let name = raw.next().ok_or("no name")?;
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let file = openat(&directory, name, flags, Mode::empty())?;
                let count = rustix::io::read(&file, &mut buffer)?;
                if black_box(count) == CONTENT { Ok(()) } else { Err("a short read".into()) }
            })
        },
    )?;
    let details = format!(
        "quartiles {}; gateway {:.2} µs, open+read+close {:.2} µs",
        pair.ratio.quartiles(1.0),
        pair.ours.median() / 1e3,
        pair.bare.median() / 1e3
    );
    report("read", pair.ratio.median(), "× open+read+close", Bound::AtMost(8.0), &details);
    gateway.stop(&session)?;
    floor(pair.bare.median())
}

/// Prints the time of the gateway's system calls alone, and with the two hashes
/// that the record needs: the rest is the gateway's own code.
fn floor(raw: f64) -> Outcome<()> {
    let world = World::new()?;
    let bare = Bare::open(&world)?;
    let names: Vec<_> = (0..FILES).map(world::file).collect();
    let mut name = names.iter().cycle();
    let mut name = || name.next().ok_or("no name");
    let (mut one, mut other) = (vec![0_u8; CONTENT + 1], vec![0_u8; CONTENT + 1]);
    let turns = RefCell::new(&mut name);
    let read = |buffer: &mut [u8], hashed| {
        each(BATCH, || bare.read((turns.borrow_mut())()?, buffer, hashed))
    };
    let pair = interleave(ROUNDS, || read(&mut one, false), || read(&mut other, true))?;
    let (calls, hashed) = (pair.ours.median(), pair.bare.median());
    println!(
        "{:10} its system calls alone {:.1}× ({:.2} µs), with the hashes {:.1}× ({:.2} µs)",
        "",
        calls / raw,
        calls / 1e3,
        hashed / raw,
        hashed / 1e3
    );
    Ok(())
}
