//! Compilation of texts into a [`Policy`]: everything is parsed, merged and indexed once, so that
//! evaluation cannot fail.
//!
//! A policy is a stack of layers, one per file: the file itself and those that it extends. Denials
//! of all layers are combined. Allowances stay separate, because every layer that sets a bound must
//! allow.

use std::collections::HashMap;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::{
    Effect,
    action_set::{ActionSet, PerAccess},
    check::nearest,
    compiled::{AllowedExtensions, CompiledRule, Grant, Layer, Policy, SecretPosition},
    diagnostics::{Diagnostics, Problem},
    index::PatternSet,
    labels::Labels,
    limits::{Limits, MOUNT, SESSION},
    mode::Mode,
    network::{Network, NetworkRule, StatedNetwork},
    pattern::Pattern,
    secrets::{Secrets, StatedSecrets, parse_gitleaks},
    selftest,
    settings::StatedSettings,
    source::PolicySource,
    statements::{self, StatedLabel, StatedNetworkRule, StatedPattern, Statements},
};
use crate::model::Escaped;

/// Compiles a policy and runs its tests and those of the policies it extends.
///
/// # Errors
/// All problems of the files, or the tests that failed.
pub fn compile(source: &PolicySource) -> Result<Policy, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let mut files: Vec<Statements> = source
        .sources()
        .enumerate()
        .map(|(number, file)| statements::parse(file, source.problems(number), &mut diagnostics))
        .collect();
    for (number, statements) in files.iter_mut().enumerate() {
        let secrets = &mut statements.content_secrets;
        for file in source.rulesets(number) {
            let mut report = |span, problem| diagnostics.report(file, span, problem);
            secrets.rules.extend(parse_gitleaks(file, secrets.honor_allowlists, &mut report));
        }
    }
    if diagnostics.is_empty() {
        report_shared_ids(source, &files, &mut diagnostics);
        report_unknown_labels(source, &files, &mut diagnostics);
    }
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }
    // The tests of a policy describe it alone, so those of an extended policy run on that one
    // without the extending files. An embedded policy passes its own, as a test of this crate
    // shows.
    let extended = source.sources().zip(source.embedded_files()).enumerate().zip(&files).skip(1);
    for ((number, (file, is_embedded)), statements) in extended {
        if !is_embedded && !statements.tests.is_empty() {
            selftest::run(&assemble(source, &files, number), statements, file, &mut diagnostics);
        }
    }
    let mut policy = assemble(source, &files, 0);
    if let (Some(file), Some(statements)) = (source.sources().next(), files.first()) {
        selftest::run(&policy, statements, file, &mut diagnostics);
    }
    policy.mode = mode(source, &files, |file| file.mode);
    policy.network.mode = mode(source, &files, |file| file.network.mode);
    policy.own_tests = files.first().map_or(0, |own| own.tests.len());
    policy.tests = files.iter().map(|statements| statements.tests.len()).sum();
    let (stated, secrets) = content_secrets(source, &files);
    match secrets {
        Ok(secrets) => {
            policy.secret_bounds = stated.bounds(secrets.as_ref());
            policy.content_secrets = secrets;
        }
        Err(why) => {
            if let Some(file) = source.sources().next() {
                let problem =
                    Problem::new(format!("the rules about secrets cannot be used: {why}"));
                diagnostics.report(file, None, problem);
            }
        }
    }
    if diagnostics.is_empty() { Ok(policy) } else { Err(diagnostics) }
}

/// Merges the rules about content of all files, and the stricter of their settings.
fn content_secrets(
    source: &PolicySource,
    files: &[Statements],
) -> (StatedSecrets, Result<Option<Secrets>, String>) {
    let lineage = source.lineage(0);
    let mut rules = Vec::new();
    let mut stated = StatedSecrets::default();
    for (layer, statements) in lineage.iter().filter_map(|number| files.get(*number)).enumerate() {
        rules.extend(statements.content_secrets.rules.iter().cloned());
        stated = stated.and(statements.content_secrets.stated.in_layer(layer));
    }
    let secrets = Secrets::new(rules, stated, |layer| {
        Some(source.sources().nth(*lineage.get(layer)?)?.file.clone())
    });
    (stated, secrets)
}

fn report_shared_ids(source: &PolicySource, files: &[Statements], diagnostics: &mut Diagnostics) {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    // Parents come first, so that the error is reported for the extending file.
    for (file, statements) in source.sources().zip(files).rev() {
        let hosts = statements.network_rules.iter().map(|stated| (&stated.rule.id, &stated.span));
        let paths = statements.rules.iter().map(|rule| (&rule.id, &rule.span));
        for (id, span) in paths.chain(hosts) {
            if let Some(owner) = owners.insert(id, &file.file) {
                let problem = Problem::new(format!("the rule id `{id}` is used twice"))
                    .label(format!("used by {owner} too"))
                    .help("ids must be unique in a policy and all that it extends");
                diagnostics.report(file, Some(span.clone()), problem);
            }
        }
    }
}

/// A label that no file of the policy has would never be carried: the rule would never apply.
fn report_unknown_labels(
    source: &PolicySource,
    files: &[Statements],
    diagnostics: &mut Diagnostics,
) {
    for (number, (file, statements)) in source.sources().zip(files).enumerate() {
        let lineage = source.lineage(number);
        let labels = lineage.iter().filter_map(|file| files.get(*file)).flat_map(|f| &f.labels);
        let known: Vec<&str> = labels.map(|label| label.id.as_str()).collect();
        for (id, span) in &statements.named_labels {
            if !known.contains(&id.as_str()) {
                let problem = Problem::new(format!("no label `{}`", Escaped(id)))
                    .label("expected the id of one of `[[labels]]`, of this file or one it extends")
                    .help(match nearest(id, known.iter().copied()) {
                        Some(near) => format!("did you mean \"{near}\"?"),
                        None => format!("add `[[labels]]` with `id = \"{}\"`", Escaped(id)),
                    });
                diagnostics.report(file, Some(span.clone()), problem);
            }
        }
    }
}

fn assemble(source: &PolicySource, files: &[Statements], entry: usize) -> Policy {
    let lineage = source.lineage(entry);
    let layers: Vec<(usize, &Statements, &str)> = lineage
        .iter()
        .filter_map(|number| {
            Some((*number, files.get(*number)?, source.sources().nth(*number)?.file.as_str()))
        })
        .collect();
    let own = files.get(entry);
    let bundle = source.bundle();
    let mut policy = Policy {
        name: own.and_then(|own| own.name.clone()).unwrap_or_else(|| {
            layers.first().map_or_else(String::new, |(_, _, file)| Escaped(stem(file)).to_string())
        }),
        version: own.and_then(|own| own.version).unwrap_or(0),
        tests: 0,
        own_tests: 0,
        sha256: HEXLOWER.encode(&Sha256::digest(&bundle)),
        bundle,
        layers: Vec::new(),
        denied_extensions: HashMap::new(),
        secrets: PatternSet::default(),
        secret_locations: Vec::new(),
        denials: PatternSet::default(),
        deny_rules: Vec::new(),
        asks: PatternSet::default(),
        ask_rules: Vec::new(),
        // Tests run on the enforced policy; observe mode is set after them.
        mode: Mode::Enforce,
        settings: StatedSettings::default().complete(),
        limits: Limits::default(),
        mount_limits: Limits::default(),
        secret_bounds: StatedSecrets::default().bounds(None),
        content_secrets: None,
        network: Network::default(),
        labels: Labels::new(
            layers.iter().flat_map(|(_, stated, _)| stated.labels.iter().map(StatedLabel::parts)),
        ),
    };
    let (mut secrets, mut denials, mut asks) = (Vec::new(), Vec::new(), Vec::new());
    let mut stated = StatedSettings::default();
    let mut network = StatedNetwork::default();
    let mut network_layers = Vec::new();
    for (layer, (number, statements, file)) in layers.iter().enumerate() {
        let bounds_above = source
            .lineage(*number)
            .into_iter()
            .skip(1)
            .filter_map(|parent| files.get(parent))
            .fold(ActionSet::NONE, |set, parent| set | bounded_by(parent));
        policy.layers.push(Layer {
            file: (*file).to_owned(),
            allowed: PerAccess::from_fn(|access| {
                statements.allowed.get(access).as_ref().map(|list| Grant {
                    line: list.line,
                    patterns: PatternSet::new(numbered(&list.items)),
                    lines: list.items.iter().map(|glob| glob.line).collect(),
                })
            }),
            extensions: PerAccess::from_fn(|access| {
                statements.extensions.get(access).as_ref().map(|list| AllowedExtensions {
                    line: list.line,
                    extensions: list.items.clone(),
                })
            }),
            allows: PatternSet::default(),
            allow_rules: Vec::new(),
            bounds: bounds(statements, bounds_above),
            exceptions: PatternSet::new(at_any_depth(numbered(&statements.secret_except))),
        });
        for extension in &statements.denied_extensions {
            let location = (layer, extension.line);
            policy.denied_extensions.entry(extension.value.clone()).or_insert(location);
        }
        for (index, glob) in statements.secret_names.iter().enumerate() {
            push_all(&mut secrets, policy.secret_locations.len(), glob);
            policy.secret_locations.push(SecretPosition { layer, index, line: glob.line });
        }
        let mut allows = Vec::new();
        let mut allow_rules = Vec::new();
        for rule in &statements.rules {
            let (patterns, rules) = match rule.effect {
                Effect::Deny => (&mut denials, &mut policy.deny_rules),
                Effect::Ask => (&mut asks, &mut policy.ask_rules),
                Effect::Allow => (&mut allows, &mut allow_rules),
            };
            rule.globs.iter().for_each(|glob| push_all(patterns, rules.len(), glob));
            rules.push(CompiledRule {
                id: rule.id.clone(),
                layer,
                line: rule.line,
                actions: rule.actions,
                agents: rule.agents.clone(),
                reason: rule.reason.clone(),
            });
        }
        if let Some(top) = policy.layers.last_mut() {
            top.allows = PatternSet::new(allows);
            top.allow_rules = allow_rules;
        }
        stated = stated.and(&statements.settings.clone().in_layer(layer));
        let stated = statements.network.clone().in_layer(layer);
        network = network.and(stated);
        let in_layer = |stated: &StatedNetworkRule| NetworkRule { layer, ..stated.rule.clone() };
        network_layers.push(statements.network_rules.iter().map(in_layer).collect());
    }
    policy.secrets = PatternSet::new(at_any_depth(secrets));
    policy.denials = PatternSet::new(denials);
    policy.asks = PatternSet::new(asks);
    let file = |layer: usize| Some(policy.layers.get(layer)?.file.clone());
    let limits = stated.limits.complete(&SESSION, file);
    let mount_limits = stated.mount.limits.complete(&MOUNT, file);
    let network = network.complete(network_layers, file);
    (policy.limits, policy.mount_limits) = (limits, mount_limits);
    policy.network = network;
    policy.settings = stated.complete();
    policy
}

/// Returns observe mode if the file itself states it and no extended file states `enforce`. An
/// extended policy cannot set observe mode for one that does not state it.
fn mode(
    source: &PolicySource,
    files: &[Statements],
    of: impl Fn(&Statements) -> Option<Mode>,
) -> Mode {
    let own = files.first().and_then(&of);
    let chain = source.lineage(0);
    let insists = |file: &usize| files.get(*file).and_then(&of) == Some(Mode::Enforce);
    if own == Some(Mode::Observe) && !chain.iter().any(insists) {
        Mode::Observe
    } else {
        Mode::Enforce
    }
}

/// Returns the actions that a file bounds by `[allowedPaths]` or by `allow` rules.
fn bounded_by(statements: &Statements) -> ActionSet {
    bounds(statements, ActionSet::NONE)
}

/// Returns the actions that a file bounds if the files it extends bound `above`. With a bound
/// above, an `allow` rule without `[allowedPaths]` opens nothing, and it does not close everything
/// else either.
fn bounds(statements: &Statements, above: ActionSet) -> ActionSet {
    let listed = crate::model::Access::ALL
        .into_iter()
        .filter(|access| statements.allowed.get(*access).is_some())
        .fold(ActionSet::NONE, |set, access| set | ActionSet::about(access));
    let ruled = statements
        .rules
        .iter()
        .filter(|rule| rule.effect == Effect::Allow)
        .fold(ActionSet::NONE, |set, rule| set | rule.actions);
    listed | ruled.without(above)
}

fn push_all(patterns: &mut Vec<(u32, Pattern)>, entry: usize, glob: &StatedPattern) {
    // A file has far fewer entries than fit. With more, the last number would stand for several
    // entries, and denials would still apply.
    let entry = u32::try_from(entry).unwrap_or(u32::MAX);
    patterns.extend(glob.alternatives.iter().map(|pattern| (entry, pattern.clone())));
}

fn numbered(globs: &[StatedPattern]) -> Vec<(u32, Pattern)> {
    let mut patterns = Vec::new();
    globs.iter().enumerate().for_each(|(index, glob)| push_all(&mut patterns, index, glob));
    patterns
}

fn at_any_depth(patterns: Vec<(u32, Pattern)>) -> Vec<(u32, Pattern)> {
    patterns.into_iter().map(|(entry, pattern)| (entry, pattern.at_any_depth())).collect()
}

fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".toml").unwrap_or(name)
}
