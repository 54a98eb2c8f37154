//! Retention of backups: versions per path, days, total size.
//!
//! Within `days` it never deletes the first of a run ([`VersionRun`](super::name::VersionRun)): a
//! content that a session replaced without having stored it there itself. Otherwise an agent could
//! displace the original by many writes, or after it moved another object to where it had written.
//! If only such backups are left and there is no space, the store is full and the change must be
//! refused.

use std::collections::{HashMap, HashSet};

use portcullis_audit::Hash;

use super::{
    name::Name,
    object::{Form, ObjectName},
};
use crate::policy::Retention;

const DAY_MICROS: u64 = 24 * 60 * 60 * 1_000_000;

/// The plan of what to delete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RetentionPlan {
    /// The backups to delete.
    pub(super) evict: Vec<Name>,
    /// Bytes of those that stay, with the objects that they need.
    pub(super) total: u64,
    /// Bytes of those that stay and could be packed.
    pub(super) raw: u64,
    /// The objects with the contents of those that stay.
    pub(super) used: HashSet<Hash>,
    /// True if the requested bytes then fit.
    pub(super) fits: bool,
}

/// Decides which of `names` to delete, so that `need` bytes more fit.
///
/// `names` are those of the whole store, or of one path; `objects` are the store's objects of them.
pub(super) fn plan(
    mut names: Vec<Name>,
    objects: &[ObjectName],
    retention: &Retention,
    now: i64,
    need: u64,
) -> RetentionPlan {
    names.sort_unstable_by_key(|name| (name.id, name.key, name.group));
    let days = i64::try_from(retention.days.saturating_mul(DAY_MICROS)).unwrap_or(i64::MAX);
    let oldest = now.saturating_sub(days);
    let mut plan = RetentionPlan::default();
    let (expired, young): (Vec<Name>, Vec<Name>) =
        names.into_iter().partition(|name| name.id.micros() < oldest);
    plan.evict = expired;

    // A gateway that died during packing leaves a backup under two names.
    let mut newer: HashMap<_, u64> = HashMap::new();
    for twins in young.chunk_by(Name::is_twin) {
        if let Some(name) = twins.first() {
            *newer.entry(name.key).or_default() += 1;
        }
    }
    let mut seen = HashSet::new();
    let mut evictable = Vec::new();
    let mut retained = RetainedBackups::new(objects);
    for twins in young.chunk_by(Name::is_twin) {
        let Some(name) = twins.first() else { continue };
        let protected = seen.insert((name.key, name.group));
        let rank = newer.entry(name.key).or_default();
        let surplus = *rank > retention.versions.max(1);
        *rank = rank.saturating_sub(1);
        if !protected && surplus {
            plan.evict.extend(twins);
            continue;
        }
        twins.iter().for_each(|name| retained.add(name));
        if !protected {
            evictable.extend(twins);
        }
    }
    make_room(&mut plan, &mut retained, evictable, retention.size, need);
    plan.total = retained.total;
    plan.raw = retained.raw;
    plan.used =
        retained.users.into_iter().filter(|(_, users)| *users > 0).map(|(hash, _)| hash).collect();
    plan
}

/// Deletes oldest first for size, but nothing if it would not suffice: a refused request must not
/// cost backups.
fn make_room(
    plan: &mut RetentionPlan,
    retained: &mut RetainedBackups,
    evictable: Vec<Name>,
    limit: u64,
    need: u64,
) {
    if retained.total.saturating_add(need) <= limit {
        plan.fits = true;
        return;
    }
    let mut least = retained.clone();
    for name in &evictable {
        least.remove(name);
    }
    if least.total.saturating_add(need) > limit {
        return;
    }
    plan.fits = true;
    // A little more than needed, so that not every save has to read all names.
    let goal = limit - limit / 16;
    for name in evictable {
        if retained.total.saturating_add(need) <= goal {
            break;
        }
        retained.remove(&name);
        plan.evict.push(name);
    }
}

/// The backups that stay, and their bytes: an object counts once, however many backups share it,
/// and its base with it.
#[derive(Clone)]
struct RetainedBackups {
    objects: HashMap<Hash, (u64, Form)>,
    /// Number of backups with this content.
    users: HashMap<Hash, u64>,
    /// Number of backups and, for a base, deltas that need the object.
    needs: HashMap<Hash, u64>,
    total: u64,
    raw: u64,
}

impl RetainedBackups {
    fn new(objects: &[ObjectName]) -> Self {
        let objects = objects.iter().map(|object| (object.hash, (object.size, object.form)));
        let (users, needs) = (HashMap::new(), HashMap::new());
        Self { objects: objects.collect(), users, needs, total: 0, raw: 0 }
    }

    fn add(&mut self, name: &Name) {
        let (bytes, raw) = name.account();
        self.total = self.total.saturating_add(bytes);
        self.raw = self.raw.saturating_add(raw);
        let Some(object) = name.object else { return };
        *self.users.entry(object).or_default() += 1;
        let mut next = Some(object);
        while let Some(object) = next {
            let needs = self.needs.entry(object).or_default();
            *needs += 1;
            next = None;
            if *needs == 1
                && let Some((size, form)) = self.objects.get(&object)
            {
                self.total = self.total.saturating_add(*size);
                next = form.base().filter(|base| *base != object);
            }
        }
    }

    fn remove(&mut self, name: &Name) {
        let (bytes, raw) = name.account();
        self.total = self.total.saturating_sub(bytes);
        self.raw = self.raw.saturating_sub(raw);
        let Some(object) = name.object else { return };
        if let Some(users) = self.users.get_mut(&object) {
            *users = users.saturating_sub(1);
        }
        let mut next = Some(object);
        while let Some(object) = next {
            let needs = self.needs.entry(object).or_default();
            *needs = needs.saturating_sub(1);
            next = None;
            if *needs == 0
                && let Some((size, form)) = self.objects.get(&object)
            {
                self.total = self.total.saturating_sub(*size);
                next = form.base().filter(|base| *base != object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backup::{BackupId, name::PathKey};
    use crate::model::{Session, Transport, WorkspacePath};

    const DAY: i64 = DAY_MICROS as i64;
    const NOW: i64 = 1000 * DAY;
    const KEEP: Retention = Retention { versions: 20, days: 30, size: 1000 };

    fn name(path: &str, session: &str, micros: i64, size: u64) -> Name {
        let session = Session {
            id: session.to_owned(),
            agent: "a".parse().unwrap(),
            user: "u".to_owned(),
            transport: Transport::Acp,
            acp: None,
        };
        Name {
            key: PathKey::of(&WorkspacePath::parse(path).unwrap()),
            id: BackupId::new(micros).unwrap(),
            group: super::super::name::VersionRun::of(
                &session,
                "20261103T120102123456Z-9f04c1aa".parse().unwrap(),
            ),
            size,
            object: None,
        }
    }

    #[test]
    fn many_writes_do_not_push_the_original_out() {
        let names: Vec<Name> = (0..100).map(|i| name("f", "s", NOW - 1000 + i, 1)).collect();
        let plan = plan(names.clone(), &[], &KEEP, NOW, 0);
        assert_eq!(plan.evict, names[1..80]);
        assert_eq!(plan.total, 21);
    }

    #[test]
    fn the_first_version_of_each_run_stays_but_not_for_ever() {
        let old = name("f", "s", NOW - 31 * DAY, 1);
        let mut names = vec![old];
        for i in 0..50 {
            names.push(name("f", if i < 25 { "s" } else { "t" }, NOW - 1000 + i, 1));
        }
        let plan = plan(names.clone(), &[], &KEEP, NOW, 0);
        assert!(plan.evict.contains(&old));
        assert!(!plan.evict.contains(&names[1]) && !plan.evict.contains(&names[26]));
        assert_eq!(plan.total, 22);
    }

    #[test]
    fn size_evicts_oldest_first_and_only_when_it_helps() {
        let original = name("f", "s", NOW - 100, 300);
        let (second, third) = (name("f", "s", NOW - 90, 300), name("f", "s", NOW - 80, 300));
        let names = vec![third, original, second];
        let small = plan(names.clone(), &[], &KEEP, NOW, 200);
        assert!(small.fits);
        assert_eq!(small.evict, [second]);
        let large = plan(names.clone(), &[], &KEEP, NOW, 701);
        assert!(!large.fits);
        assert_eq!(large.evict, []);
        assert!(plan(names, &[], &KEEP, NOW, 700).fits);
    }

    /// Regression: a backup under two names took the space of another one.
    #[test]
    fn a_backup_that_was_being_packed_counts_once() {
        let first = name("f", "s", NOW - 100, 300);
        let (second, third) = (name("f", "s", NOW - 90, 300), name("f", "s", NOW - 80, 300));
        let packed = Name { object: Some(Hash::of(b"x")), size: 1, ..third };
        let keep = Retention { versions: 2, size: u64::MAX, ..KEEP };
        let found = plan(vec![first, second, third, packed], &[], &keep, NOW, 0);
        assert_eq!(found.evict, []);
        let keep = Retention { versions: 1, ..keep };
        assert_eq!(plan(vec![first, second, third, packed], &[], &keep, NOW, 0).evict, [second]);
    }

    #[test]
    fn a_shared_content_counts_once_and_goes_with_its_last_user() {
        let hash = |text: &str| Hash::of(text.as_bytes());
        let object = |text: &str, size, form| ObjectName { hash: hash(text), size, form };
        let objects = [
            object("base", 100, Form::Zstd),
            object("delta", 10, Form::Delta(hash("base"))),
            object("other", 500, Form::Raw),
        ];
        let packed = |session, age, content: &str| Name {
            object: Some(hash(content)),
            ..name("f", session, NOW - age, 1)
        };
        let first = packed("s", 100, "base");
        let (second, third) = (packed("s", 90, "delta"), packed("s", 80, "delta"));
        let fourth = packed("s", 70, "other");
        let names = vec![first, second, third, fourth];
        let all = plan(names.clone(), &objects, &KEEP, NOW, 0);
        assert_eq!((all.total, all.raw, all.evict.len()), (614, 0, 0));
        assert_eq!(all.used, objects.iter().map(|object| object.hash).collect());
        // The delta is deleted after both of its users.
        let less = plan(names.clone(), &objects, &KEEP, NOW, 395);
        assert_eq!((less.evict, less.total), (vec![second, third, fourth], 101));
        assert_eq!(less.used, HashSet::from([hash("base")]));
        // A base stays as long as a delta needs it.
        let alone = plan(vec![second], &objects, &KEEP, NOW, 0);
        assert_eq!((alone.total, alone.used), (111, HashSet::from([hash("delta")])));
    }

    proptest! {
        #[test]
        fn what_is_protected_always_stays(
            entries in prop::collection::vec((0..4_u8, 0..3_u8, 0..60_i64, 0..500_u64), 0..80),
            versions in 0..5_u64, size in 0..2000_u64, need in 0..800_u64,
        ) {
            let keep = Retention { versions, days: 30, size };
            let names: Vec<Name> = entries.iter().map(|(path, session, age, size)| {
                name(&path.to_string(), &session.to_string(), NOW - age * DAY, *size)
            }).collect();
            let plan = plan(names.clone(), &[], &keep, NOW, need);
            let young = |name: &&Name| name.id.micros() >= NOW - 30 * DAY;
            for name in &names {
                let first = names.iter().filter(young)
                    .filter(|other| (other.key, other.group) == (name.key, name.group))
                    .map(|other| other.id).min();
                if first == Some(name.id) {
                    prop_assert!(!plan.evict.contains(name));
                }
                let newest = names.iter().filter(|other| other.key == name.key).max_by_key(|n| n.id);
                if newest == Some(name) && young(&name) && need == 0 && size > 100_000 {
                    prop_assert!(!plan.evict.contains(name));
                }
            }
            let stays: u64 = names.iter().filter(|n| !plan.evict.contains(n)).map(|n| n.size).sum();
            prop_assert_eq!(stays, plan.total);
            prop_assert_eq!(plan.fits, plan.total + need <= size);
        }
    }
}
