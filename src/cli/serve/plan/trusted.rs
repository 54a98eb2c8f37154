//! The check that no agent of a workspace can change trusted paths of the service.

use std::{collections::BTreeSet, path::Path};

use super::{Plan, agents, ground};
use crate::{
    app::{failure::Failure, trusted_paths},
    sandbox::{TrustError, Trusted, TrustedPath, TrustedPaths},
};

impl Plan {
    /// Checks that no agent of any workspace can change a trusted path. Returns a workspace at
    /// fault, which must not be served.
    pub(super) fn check_trusted(
        &self,
        before: Option<&Self>,
    ) -> Result<Result<(), (String, Failure)>, Failure> {
        let all = TrustedPaths { trusted: self.trusted()?, agents: agents(self.places.values()) };
        // Workspaces served before have been checked: a policy is accepted only if it lies in
        // none of them.
        let old: BTreeSet<_> = before.iter().flat_map(|b| b.places.values()).map(ground).collect();
        let fresh = self.places.values().filter(|place| !old.contains(&ground(place)));
        let fresh = agents(fresh).into_iter().chain(trusted_paths::shared_by_agents()).collect();
        let policies = TrustedPaths { trusted: self.trusted_policies()?, agents: fresh };
        let Err(error) = all.check().and_then(|()| policies.check_trusted()) else {
            return Ok(Ok(()));
        };
        let named = |path: &Path| {
            self.places.values().find(|place| {
                [&place.alias, &place.named_state, &place.state].iter().any(|its| *its == path)
            })
        };
        let at_fault = match &error {
            TrustError::Redirectable { path, location_path, .. } => {
                named(path).or(named(location_path))
            }
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

    /// Checks the trusted paths that belong to no workspace, such as the configuration, a
    /// certificate or the signer. If one lies in, or is named through, a workspace served now or
    /// `before`, the whole configuration is refused: that workspace is not at fault, and its agent
    /// may have chosen what the path leads to. A path that did not change may lead elsewhere now.
    pub(super) fn check_service(&self, before: &Self) -> Result<(), Failure> {
        let agents = agents(before.places.values().chain(self.places.values()));
        let paths = TrustedPaths { trusted: self.trusted_of_service()?, agents };
        paths
            .check_trusted()
            .map_err(|error| Failure::new(error).help("correct the path, and reload again"))
    }

    /// Checks the programs that a start of a worker has executed, and their certificates: a path may
    /// lead elsewhere than at the start or the last reload. No other path is looked up, because one on
    /// a network may hang.
    pub(in crate::cli::serve) fn check_programs(&self) -> Result<(), Failure> {
        use Trusted::{Certificate, Notifier, Signer, SignerKey};
        let mut trusted = trusted_paths::in_use(&self.operator, &self.audit)?;
        trusted.retain(|path| matches!(path.role, Signer | SignerKey | Notifier | Certificate));
        if trusted.is_empty() {
            return Ok(());
        }
        let agents = agents(self.places.values());
        TrustedPaths { trusted, agents }.check_trusted().map_err(Failure::new)
    }

    /// Returns all trusted paths except policies.
    fn trusted(&self) -> Result<Vec<TrustedPath>, Failure> {
        let states = self.places.values().flat_map(|place| [&place.state, &place.named_state]);
        let states = states.flat_map(|path| trusted_paths::of_state(path));
        let mut trusted = trusted_paths::listed(states.chain(trusted_paths::places()).collect())?;
        trusted.extend(self.trusted_of_service()?);
        Ok(trusted)
    }

    /// Returns the trusted paths that belong to no workspace, and that the service uses.
    fn trusted_of_service(&self) -> Result<Vec<TrustedPath>, Failure> {
        let mut found = trusted_paths::of_state(&self.state);
        found.extend(trusted_paths::of_state(&self.named_state));
        // The path of the configuration is read again at a reload.
        found.extend(self.config.iter().map(|path| (Trusted::Configuration, path.clone())));
        found.extend(trusted_paths::of_service(&self.service));
        let mut trusted = trusted_paths::listed(found)?;
        trusted.extend(trusted_paths::in_use(&self.operator, &self.audit)?);
        Ok(trusted)
    }

    /// Returns the files of the policies in force. A refused replacement is checked again
    /// before it is accepted.
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
