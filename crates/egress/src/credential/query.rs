//! Checks of paths and queries of requests (RFC 3986): forms that two programs could parse
//! differently are refused.

use std::ops::Range;

/// Parts of names of headers and parameters that servers take for credentials, by their [letters].
const CREDENTIAL_PARTS: [&str; 15] = [
    "assertion",
    "auth",
    "bearer",
    "cookie",
    "credential",
    "impersonat",
    "jwt",
    "key",
    "passphrase",
    "passw",
    "remoteuser",
    "secret",
    "signature",
    "ticket",
    "token",
];

/// Names of credentials that are parts of too many other names.
const CREDENTIALS: [&str; 7] = ["code", "pat", "pwd", "session", "sid", "sig", "sso"];

/// Names that have such a part and are none.
const NO_CREDENTIALS: [&str; 12] = [
    "author",
    "authors",
    "continuationtoken",
    "idempotencykey",
    "keyword",
    "keywords",
    "maxoutputtokens",
    "maxtokens",
    "nextpagetoken",
    "nexttoken",
    "pagetoken",
    "xidempotencykey",
];

/// Prefixes of parameters that are credentials, as clouds use them.
const CREDENTIAL_PREFIXES: [&str; 3] = ["xamz", "xapi", "xgoog"];

/// Beginnings of names by which a server could take another method, path or host than those that
/// were checked.
const OVERRIDES: [&str; 6] =
    ["xforwarded", "xhost", "xhttpmethod", "xmethod", "xoriginal", "xrewrite"];

/// Returns the letters and digits of a name, in lower case. Names are compared by these: servers
/// differ in which other characters they ignore or replace.
pub(super) fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// True if the path has one form only: no escapes, no `.` and `..`, no empty parts, no parameters.
pub(super) fn is_plain(path: &str) -> bool {
    let is_plain = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,=".contains(&byte);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    path == "/" || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain))
}

/// True if one of `patterns` is the path, or ends with `/*` and has it beneath.
pub(super) fn is_listed(path: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(above) if above.ends_with('/') => {
            path.strip_prefix(above).is_some_and(|beneath| !beneath.is_empty())
        }
        _ => pattern == path,
    })
}

/// True if a server could take the header or parameter of this name for a credential.
pub(super) fn is_credential(name: &str) -> bool {
    let whole = letters(name);
    let mut pieces = name.split(['[', ']', '.', '?']).map(letters);
    !NO_CREDENTIALS.contains(&&*whole)
        && (CREDENTIAL_PARTS.iter().any(|part| whole.contains(part))
            || pieces.any(|name| CREDENTIALS.contains(&name.strip_prefix('x').unwrap_or(&name))))
}

/// True if a server could take the header or parameter of this name for another method, path or
/// host than those that were checked.
pub(super) fn is_override(name: &str) -> bool {
    let letters = letters(name);
    OVERRIDES.iter().any(|begin| letters.starts_with(begin))
}

/// True if a query has a parameter that a server could take for a credential or another method.
pub(super) fn is_refused(query: &str) -> bool {
    // A server may decode a query before or after it takes it apart.
    let Some(complete) = decoded(query) else { return true };
    let parts = query.split(['&', ';']).chain(complete.split(['&', ';']));
    parts.filter_map(|part| part.split('=').next()).map(decoded).any(|name| {
        let Some(name) = name else { return true };
        let letters = letters(&name);
        is_credential(&name)
            || is_override(&name)
            || CREDENTIAL_PREFIXES.iter().any(|begin| letters.starts_with(begin))
            // Frameworks take the parameter `_method`; one named `method` is anything.
            || (letters == "method" && !name.eq_ignore_ascii_case("method"))
    })
}

/// Maximum of rounds in which the escapes of a name are decoded: each takes time by its length.
const MAX_ROUNDS: usize = 8;

/// Returns a name with its escapes decoded until there are none; `None` if there are more in one
/// another than any program makes.
fn decoded(name: &str) -> Option<String> {
    let mut name = name.to_owned();
    for _ in 0..MAX_ROUNDS {
        let Some(shorter) = decoded_once(&name) else { return Some(name) };
        name = shorter;
    }
    None
}

fn decoded_once(name: &str) -> Option<String> {
    let (mut bytes, mut rest, mut is_escaped) = (Vec::new(), name.as_bytes(), false);
    while let Some((byte, more)) = rest.split_first() {
        let (byte_value, character) = (hexadecimal(more, 0..2), hexadecimal(more, 1..5));
        match (byte, more.first(), byte_value, character.and_then(char::from_u32)) {
            (b'%', _, Some(escaped), _) => {
                bytes.extend(u8::try_from(escaped).ok());
                rest = more.get(2..).unwrap_or_default();
                is_escaped = true;
            }
            // No standard has these escapes, and some servers decode them.
            (b'%', Some(b'u' | b'U'), _, Some(escaped)) => {
                bytes.extend(escaped.to_string().bytes());
                rest = more.get(5..).unwrap_or_default();
                is_escaped = true;
            }
            _ => {
                bytes.push(*byte);
                rest = more;
            }
        }
    }
    is_escaped.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number that is written in hexadecimal digits in that range of bytes.
fn hexadecimal(bytes: &[u8], range: Range<usize>) -> Option<u32> {
    let digits = bytes.get(range).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form() {
        for path in ["/", "/v1/messages", "/v1beta/models/a-1.5:generateContent", "/a/.b/..c/d~"] {
            assert!(is_plain(path), "{path}");
        }
        for path in [
            "",
            "v1",
            "//",
            "/v1/",
            "/v1//messages",
            "/./v1",
            "/v1/../v2",
            "/v1/..",
            "/%2e%2e/v1",
            "/v1%2fmessages",
            "/v1\\messages",
            "/v1;x/messages",
            "/v1/%00",
            "/é",
            "/a b",
            "*",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }

    #[test]
    fn a_pattern_is_a_path_or_what_is_beneath() {
        let patterns = ["/v1/messages", "/v1/files/*"].map(str::to_owned);
        for (path, listed) in [
            ("/v1/messages", true),
            ("/v1/files/a", true),
            ("/v1/files/a/b", true),
            ("/v1/files", false),
            ("/v1/messages/batches", false),
            ("/v1/MESSAGES", false),
            ("/v1/messagesx", false),
        ] {
            assert_eq!(is_listed(path, &patterns), listed, "{path}");
        }
        assert!(is_listed("/a/b", &["/*".to_owned()]));
    }

    #[test]
    fn a_credential_in_a_query_is_found_however_it_is_written() {
        for query in [
            "key=x",
            "a=b&KEY=x",
            "a;key=x",
            "%6bey=x",
            "%256bey",
            "x-goog-api-key=1",
            "+key",
            "apiKey=x",
            "api.key=x",
            "api%5fkey=x",
            "API-KEY=x",
            "key%00=x",
            "key[]=x",
            "access-token=x",
            "X_Amz_Signature=x",
            "\u{212a}ey=x",
            "private_token=x",
            "subscription-key=x",
            "auth_token=x",
            "api_token=x",
            "code=x",
            "jwt=x",
            "pat=x",
            "x-pat=x",
            "sig[a]=x",
            "oauth_signature=x",
            "client_assertion=x",
            "x?key=1",
            "x?code=1",
            "token[a]=1",
            "a[token]=1",
            "token.a=1",
            "pageToken[token]=1",
            "_method=DELETE",
            "%5Fmethod=DELETE",
            "X-HTTP-Method-Override=DELETE",
            // Some servers decode these escapes, or all of a query at first.
            "%u006bey=1",
            "%25U006Bey=1",
            "a=1%26key=2",
            "a=1%253bcode%3d2",
            // No program makes so many in one another, and each takes time.
            "a%252525252525252541=1",
        ] {
            assert!(is_refused(query), "{query}");
        }
        for query in [
            "",
            "a%25252541=1",
            "beta=true",
            "alt=sse",
            "pageToken=key",
            "a=key",
            "session_id=1",
            "method=1",
            "country_code=1",
            "design=1",
            "path=1",
            "keywords=1",
            "max_tokens=1",
            "api-version=1",
            "%zz=1",
            "%u00zz=1",
            "%ud800=1",
            "q=1%26b=key",
        ] {
            assert!(!is_refused(query), "{query}");
        }
    }
}
