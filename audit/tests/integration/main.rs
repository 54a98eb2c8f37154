//! Tests of the verifier over the committed vectors and over logs too large to commit.

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod support;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod verify;
