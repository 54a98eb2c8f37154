//! Settings of the mount: `[mount]`. Programs read files that no model does, so its limits are not
//! those of `[files]` and `[limits]`.

use super::{
    layered::{Layered, least},
    limits::StatedLimits,
    settings::Binary,
};

/// Default maximum size of a file that is read or written through the mount, in bytes.
const DEFAULT_SIZE: u64 = 256 << 20;

/// The settings as files state them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StatedMount {
    pub(super) max_read: Option<Layered<u64>>,
    pub(super) max_write: Option<Layered<u64>>,
    pub(super) binary_read: Option<Layered<Binary>>,
    pub(super) binary_write: Option<Layered<Binary>>,
    pub(super) limits: StatedLimits,
}

/// The settings in force.
#[derive(Debug, Clone, Copy)]
pub struct MountSettings {
    /// `mount.maxReadSize`.
    pub max_read: Layered<u64>,
    /// `mount.maxWriteSize`.
    pub max_write: Layered<u64>,
    /// `mount.binary.read`.
    pub binary_read: Layered<Binary>,
    /// `mount.binary.write`.
    pub binary_write: Layered<Binary>,
}

impl StatedMount {
    /// Returns the settings as stated by the file of layer `layer`.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        Self {
            max_read: self.max_read.map(|layered| layered.in_layer(layer)),
            max_write: self.max_write.map(|layered| layered.in_layer(layer)),
            binary_read: self.binary_read.map(|layered| layered.in_layer(layer)),
            binary_write: self.binary_write.map(|layered| layered.in_layer(layer)),
            limits: self.limits.in_layer(layer),
        }
    }

    /// Returns the stricter of both, setting by setting.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            max_read: least(self.max_read, other.max_read),
            max_write: least(self.max_write, other.max_write),
            binary_read: least(self.binary_read, other.binary_read),
            binary_write: least(self.binary_write, other.binary_write),
            limits: self.limits.and(other.limits),
        }
    }

    /// Fills in the defaults.
    pub(super) fn complete(self) -> MountSettings {
        let size =
            |layered: Option<_>| layered.unwrap_or(Layered { value: DEFAULT_SIZE, location: None });
        let binary = |layered: Option<_>| {
            layered.unwrap_or(Layered { value: Binary::Base64, location: None })
        };
        MountSettings {
            max_read: size(self.max_read),
            max_write: size(self.max_write),
            binary_read: binary(self.binary_read),
            binary_write: binary(self.binary_write),
        }
    }
}
