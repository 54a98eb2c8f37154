//! Limits of one session: `[limits]`. The gateway counts. This module contains the values of a
//! policy, and the rule by which limits merge: the smaller one applies, and a missing one sets no
//! bound.

use super::{
    Decision, SourceLocation,
    layered::{Layered, least},
};

/// The limits of every session; without any, nothing is counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of operations that may begin within a second.
    pub operations_per_second: Option<Limit>,
    /// Maximum number of bytes stored in files, by all writes together.
    pub bytes_written: Option<Limit>,
    /// Maximum number of files and links removed, including those in removed trees.
    pub files_removed: Option<Limit>,
    /// Number of denials after which the session is closed.
    pub denials: Option<Limit>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The maximum.
    pub maximum: u64,
    rule: &'static str,
    location: Option<SourceLocation>,
    reason: &'static str,
}

impl Limits {
    /// True if the policy states any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl Limit {
    /// Makes a limit that a file states; `file` returns the file of a layer.
    pub(super) fn new(
        Layered { value, location }: Layered<u64>,
        rule: &'static str,
        reason: &'static str,
        file: impl Fn(usize) -> Option<String>,
    ) -> Self {
        let location =
            location.and_then(|(layer, line)| Some(SourceLocation { file: file(layer)?, line }));
        Self { maximum: value, rule, location, reason }
    }

    /// Returns the denial of a request that would exceed it.
    pub fn exceeded(&self) -> Decision {
        let location = self.location.clone();
        Decision { location, ..Decision::built_in_denial(self.rule, self.reason) }
    }
}

/// The IDs of the rules for the limits of one table.
pub struct LimitRules {
    /// The rule for operations within a second.
    pub operations_per_second: &'static str,
    /// The rule for bytes written.
    pub bytes_written: &'static str,
    /// The rule for removals.
    pub files_removed: &'static str,
    /// The rule for denials.
    pub denials: &'static str,
}

/// The rules of `[limits]`.
pub const SESSION: LimitRules = LimitRules {
    operations_per_second: "limits.operationsPerSecond",
    bytes_written: "limits.bytesWritten",
    files_removed: "limits.filesRemoved",
    denials: "limits.denials",
};

/// The rules of `[mount]`.
pub const MOUNT: LimitRules = LimitRules {
    operations_per_second: "mount.operationsPerSecond",
    bytes_written: "mount.bytesWritten",
    files_removed: "mount.filesRemoved",
    denials: "mount.denials",
};

/// The limits as files state them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StatedLimits {
    pub(super) operations_per_second: Option<Layered<u64>>,
    pub(super) bytes_written: Option<Layered<u64>>,
    pub(super) files_removed: Option<Layered<u64>>,
    pub(super) denials: Option<Layered<u64>>,
}

impl StatedLimits {
    /// Returns the limits as stated by the file of layer `layer`.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        let set = |layered: Option<Layered<u64>>| layered.map(|layered| layered.in_layer(layer));
        Self {
            operations_per_second: set(self.operations_per_second),
            bytes_written: set(self.bytes_written),
            files_removed: set(self.files_removed),
            denials: set(self.denials),
        }
    }

    /// Returns the smaller of both, limit by limit.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            operations_per_second: least(self.operations_per_second, other.operations_per_second),
            bytes_written: least(self.bytes_written, other.bytes_written),
            files_removed: least(self.files_removed, other.files_removed),
            denials: least(self.denials, other.denials),
        }
    }

    /// Returns the limits in force, with the names of their rules; `file` returns the file of a
    /// layer.
    pub(super) fn complete(
        self,
        rules: &LimitRules,
        file: impl Fn(usize) -> Option<String>,
    ) -> Limits {
        let limit = |layered: Option<Layered<u64>>, rule, reason| {
            layered.map(|layered| Limit::new(layered, rule, reason, &file))
        };
        Limits {
            operations_per_second: limit(
                self.operations_per_second,
                rules.operations_per_second,
                "too many operations within a second; wait",
            ),
            bytes_written: limit(
                self.bytes_written,
                rules.bytes_written,
                "the session would write more than it may",
            ),
            files_removed: limit(
                self.files_removed,
                rules.files_removed,
                "the session would remove more files than it may",
            ),
            denials: limit(
                self.denials,
                rules.denials,
                "the session is closed after too many denials",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_wins_and_keeps_its_place() {
        let layered = |value, line| Some(Layered { value, location: Some((0, line)) });
        let ours = StatedLimits {
            denials: layered(5, 3),
            files_removed: layered(0, 4),
            ..StatedLimits::default()
        };
        let theirs = StatedLimits { denials: layered(4, 7), ..StatedLimits::default() };
        let merged =
            ours.and(theirs.in_layer(1)).complete(&SESSION, |layer| Some(format!("file {layer}")));
        let denials = merged.denials.unwrap();
        assert_eq!(denials.maximum, 4);
        assert_eq!(denials.exceeded().location.unwrap().to_string(), "file 1:7");
        assert_eq!(merged.files_removed.unwrap().maximum, 0);
        assert_eq!(merged.bytes_written, None);
        let mount = ours.complete(&MOUNT, |_| None).denials.unwrap();
        assert_eq!(mount.exceeded().rule(), "mount.denials");
        assert!(!StatedLimits::default().complete(&SESSION, |_| None).any());
    }
}
