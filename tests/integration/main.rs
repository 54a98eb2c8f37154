//! Everything through the front door: one binary, a module per door.
