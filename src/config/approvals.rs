//! `[approvals.notify]` of the operator's configuration: where a notification goes when a request
//! waits for an approval.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{credentials::is_token, file::NO_FORM, keys::keys_except};
use crate::policy::{Diagnostics, Document, Field, Shape, optional};

/// Longest URL and value of a header, in bytes.
const MAX_TEXT: usize = 4096;

const FIELDS: &[Field] = &[optional(
    "approvals",
    Shape::Table(&[optional(
        "notify",
        Shape::Table(&[
            optional("desktop", Shape::Boolean),
            optional("webhook", Shape::Text),
            optional("format", Shape::Word(&["json", "ntfy"])),
            optional("headers", Shape::Texts),
        ]),
    )]),
)];

/// The notifications.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notifications {
    /// True if `notify-send` shows them on the operator's desktop.
    pub desktop: bool,
    /// That program, once it is found.
    pub program: Option<PathBuf>,
    /// The server that gets them.
    pub webhook: Option<Webhook>,
}

impl Notifications {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        !self.desktop && self.webhook.is_none()
    }
}

/// A server that gets notifications by HTTP POST.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// Its URL, which may contain a secret.
    pub url: String,
    /// The body.
    pub format: WebhookFormat,
    /// Headers of the request, such as `authorization`.
    pub headers: BTreeMap<String, String>,
}

/// The text without secrets.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("format", &self.format).finish_non_exhaustive()
    }
}

/// The body of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WebhookFormat {
    /// A JSON object.
    #[default]
    Json,
    /// A text, and a title in a header: `https://docs.ntfy.sh/publish/`.
    Ntfy,
}

#[derive(Default, Deserialize)]
struct ApprovalsFile {
    #[serde(default)]
    approvals: Approvals,
}

#[derive(Default, Deserialize)]
struct Approvals {
    #[serde(default)]
    notify: Notify,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Notify {
    desktop: bool,
    webhook: Option<Spanned<String>>,
    format: Option<Spanned<WebhookFormat>>,
    headers: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// Parses `text` of `file`.
pub(super) fn parse(text: &str, file: &str) -> Result<Notifications, Diagnostics> {
    let mut document = Document::check(file, text, FIELDS, &keys_except(&["approvals"]));
    if !document.is_good() {
        return document.finish().map(|()| Notifications::default());
    }
    let notify = match toml::from_str::<ApprovalsFile>(text) {
        Ok(file) => file.approvals.notify,
        Err(error) => {
            document.wrong(error.span().unwrap_or(0..0), NO_FORM, "");
            Notify::default()
        }
    };
    let notifications = notify.read(&mut document);
    document.finish().map(|()| notifications)
}

impl Notify {
    fn read(self, document: &mut Document) -> Notifications {
        let Self { desktop, webhook, format, headers } = self;
        if let Some(url) = &webhook
            && !is_url(url.get_ref())
        {
            let help = "write `https://` or `http://`, a host and a path";
            document.wrong(url.span(), "`webhook` is no URL of HTTP", help);
        }
        if let Some(url) = &webhook
            && !cfg!(feature = "webhooks")
        {
            let help = "build it with `--features webhooks`, or `full`; `desktop` needs neither";
            document.wrong(url.span(), "this build of portcullis sends no webhooks", help);
        }
        for (name, value) in &headers {
            let is_value = value.get_ref().bytes().all(|byte| matches!(byte, b' '..=b'~'));
            if !is_token(name.get_ref()) || !is_value || value.get_ref().len() > MAX_TEXT {
                document.wrong(name.span(), "`headers` has a header that cannot be sent", "");
            }
        }
        let of_none = format.as_ref().map(Spanned::span);
        let of_none = of_none.or_else(|| headers.keys().next().map(Spanned::span));
        if let (None, Some(span)) = (&webhook, of_none) {
            document.wrong(span, "`format` and `headers` are for a `webhook`", "");
        }
        let webhook = webhook.map(|url| Webhook {
            url: url.into_inner(),
            format: format.map(Spanned::into_inner).unwrap_or_default(),
            headers: headers
                .into_iter()
                .map(|(name, value)| (name.into_inner(), value.into_inner()))
                .collect(),
        });
        Notifications { desktop, program: None, webhook }
    }
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_host = |rest: &str| !rest.is_empty() && !rest.starts_with(['/', '?', '#', ':']);
    text.len() <= MAX_TEXT
        && text.bytes().all(|byte| matches!(byte, b'!'..=b'~'))
        && rest.is_some_and(is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Notifications, String> {
        parse(&format!("[approvals.notify]\n{text}"), "f").map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn by_default_nothing_is_sent() {
        assert!(parse("", "f").unwrap().is_empty());
        assert!(read("").unwrap().is_empty());
        assert!(read("desktop = true").unwrap().desktop);
    }

    #[cfg(feature = "webhooks")]
    #[test]
    fn a_webhook_has_a_format_and_headers() {
        let text = "webhook = \"https://user:secret@ntfy.example/t?key=secret\"\nformat = \"ntfy\"\n\
                    headers = { Authorization = \"Bearer secret\" }\n";
        let webhook = read(text).unwrap().webhook.unwrap();
        assert_eq!((webhook.format, webhook.headers.len()), (WebhookFormat::Ntfy, 1));
        let shown = format!("{webhook:?}");
        assert!(shown.contains("Ntfy") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_line() {
        for (text, word) in [
            ("webhook = \"ntfy.sh/topic\"", "`webhook` is no URL of HTTP\n --> f:2:11"),
            ("webhook = \"https:///topic\"", "`webhook` is no URL"),
            ("webhook = \"https://a b\"", "`webhook` is no URL"),
            ("webhook = 1", "`approvals.notify.webhook` cannot be"),
            ("desktop = \"yes\"", "`approvals.notify.desktop` cannot be"),
            ("format = \"ntfy\"", "are for a `webhook`"),
            ("headers = { a = \"b\" }", "are for a `webhook`"),
            ("webhook = \"https://a\"\nformat = \"xml\"", "cannot be \"xml\""),
            ("webhook = \"https://a\"\nheaders = { \"a b\" = \"c\" }", "cannot be sent"),
            ("webhook = \"https://a\"\nheaders = { a = \"c\\r\\nd: e\" }", "cannot be sent"),
            ("webhooks = 1", "did you mean `webhook`?"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.contains(word), "{text}: {wrong}");
        }
    }
}
