//! Findings as SARIF 2.1.0 (OASIS standard, March 2020), as far as code scanning
//! reads it.

use serde::Serialize;

use super::Located;
use crate::policy_tools::LINTS;

/// Returns the log of a run.
pub(super) fn log(found: &[Located]) -> Result<String, serde_json::Error> {
    let rules = LINTS
        .iter()
        .map(|lint| Rule {
            id: lint.id,
            short_description: SarifText { text: lint.reason.to_owned() },
        })
        .collect();
    let results = found.iter().map(result).collect();
    let driver = Driver { name: "portcullis", version: env!("CARGO_PKG_VERSION"), rules };
    let run = Run { tool: Tool { driver }, column_kind: "unicodeCodePoints", results };
    serde_json::to_string_pretty(&Log {
        schema: "https://json.schemastore.org/sarif-2.1.0.json",
        version: "2.1.0",
        runs: [run],
    })
}

fn result(located: &Located) -> Outcome {
    let finding = &located.finding;
    let text = format!("{}. {}. {}", finding.message, finding.reason(), finding.suggestion);
    Outcome {
        rule_id: finding.id,
        level: "warning",
        message: SarifText { text },
        locations: [Location {
            physical_location: PhysicalLocation {
                artifact_location: Artifact { uri: uri(&located.file.name) },
                region: Region {
                    start_line: located.line(),
                    start_column: located.column(),
                    end_line: located.file.line(finding.span.end),
                    end_column: located.file.column(finding.span.end),
                },
            },
        }],
    }
}

/// Returns a relative reference: characters that a URI does not allow become `%XX`.
fn uri(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[derive(Serialize)]
struct Log {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    tool: Tool,
    column_kind: &'static str,
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Tool {
    driver: Driver,
}

#[derive(Serialize)]
struct Driver {
    name: &'static str,
    version: &'static str,
    rules: Vec<Rule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    id: &'static str,
    short_description: SarifText,
}

#[derive(Serialize)]
struct SarifText {
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    rule_id: &'static str,
    level: &'static str,
    message: SarifText,
    locations: [Location; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: PhysicalLocation,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PhysicalLocation {
    artifact_location: Artifact,
    region: Region,
}

#[derive(Serialize)]
struct Artifact {
    uri: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Region {
    start_line: u64,
    start_column: u64,
    end_line: u64,
    end_column: u64,
}
