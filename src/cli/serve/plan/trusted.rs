//! Whether what the service trusts lies where no agent of a workspace may change it.

use std::{collections::BTreeSet, path::Path};

use super::{Plan, agents, ground};
use crate::{
    app::{failure::Failure, trusted_paths},
    config::serve::Listen,
    sandbox::{TrustError, Trusted, TrustedPath, TrustedPaths},
};

impl Plan {
    /// Checks that whatever is trusted lies where no agent of any workspace may
    /// change it. Reports a workspace that is at fault, which must not be served.
    pub(super) fn check_trusted(
        &self,
        before: Option<&Self>,
    ) -> Result<Result<(), (String, Failure)>, Failure> {
        let all = TrustedPaths { trusted: self.trusted()?, agents: agents(self.places.values()) };
        // Those that were served have been checked: a policy is taken up only if it
        // lies in none of them.
        let old: BTreeSet<_> = before.iter().flat_map(|b| b.places.values()).map(ground).collect();
        let fresh = self.places.values().filter(|place| !old.contains(&ground(place)));
        let policies = TrustedPaths { trusted: self.trusted_policies()?, agents: agents(fresh) };
        let Err(error) = all.check().and_then(|()| policies.check_trusted()) else {
            return Ok(Ok(()));
        };
        let named = |path: &Path| {
            self.places.values().find(|place| {
                [&place.alias, &place.named_state, &place.state].iter().any(|its| *its == path)
            })
        };
        let at_fault = match &error {
            TrustError::Redirectable { path, place_path, .. } => named(path).or(named(place_path)),
            TrustError::Overlap { one_path, other_path, .. } => {
                named(one_path).or(named(other_path))
            }
            TrustError::Lookup { path, .. } => named(path),
            TrustError::HardLink { .. } | TrustError::Mounts(_) => None,
        };
        match at_fault {
            Some(place) => Ok(Err((place.name.clone(), Failure::new(error)))),
            None => Err(Failure::new(error)),
        }
    }

    /// Checks what of no workspace is trusted now and was not `before`, such as a directory for
    /// copies. What lies in a workspace, now or then, refuses the configuration as a whole: the
    /// workspace is not at fault, and its agent may have put a link there.
    pub(super) fn check_fresh(&self, before: &Self) -> Result<(), Failure> {
        let known = before.trusted_of_service()?;
        let mut trusted = self.trusted_of_service()?;
        trusted.retain(|path| !known.contains(path));
        let agents = agents(before.places.values().chain(self.places.values()));
        TrustedPaths { trusted, agents }.check_trusted().map_err(Failure::new)
    }

    /// All that the service trusts but the policies.
    fn trusted(&self) -> Result<Vec<TrustedPath>, Failure> {
        let states = self.places.values().flat_map(|place| [&place.state, &place.named_state]);
        let states = states.map(|path| (Trusted::State, path.clone()));
        let mut trusted = trusted_paths::listed(states.collect())?;
        trusted.extend(self.trusted_of_service()?);
        Ok(trusted)
    }

    /// Those that belong to no workspace.
    fn trusted_of_service(&self) -> Result<Vec<TrustedPath>, Failure> {
        let mut found =
            vec![(Trusted::State, self.state.clone()), (Trusted::State, self.named_state.clone())];
        // What the name leads to is read again.
        found.extend(self.config.iter().map(|path| (Trusted::Configuration, path.clone())));
        if let Some(tls) = &self.service.tls {
            found.push((Trusted::Certificate, tls.certificate.clone()));
            found.push((Trusted::CertificateKey, tls.key.clone()));
        }
        for listen in &self.service.listen {
            if let Listen::Unix(path) = listen {
                found.push((Trusted::Socket, path.clone()));
            }
        }
        let mut trusted = trusted_paths::listed(found)?;
        trusted.extend(trusted_paths::own(&self.operator, &self.audit)?);
        Ok(trusted)
    }

    /// The files of the policies that are in force. What was offered in the place of
    /// one and refused is checked again before it is taken up.
    fn trusted_policies(&self) -> Result<Vec<TrustedPath>, Failure> {
        let used: BTreeSet<_> = self.places.values().map(|place| &place.policy).collect();
        let mut trusted = Vec::new();
        for (_, policy) in self.policies.iter().filter(|(name, _)| used.contains(name)) {
            if policy.refused.is_none() {
                trusted.extend(trusted_paths::policy(&policy.texts, &self.operator)?);
            }
        }
        Ok(trusted)
    }
}
