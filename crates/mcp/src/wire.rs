//! Conversion of lines to messages and back.
//!
//! `rmcp` gets messages parsed here: a line is bounded, and refused completely unless it is one
//! valid message in strict JSON.

use std::{collections::BTreeMap, convert::Infallible, io, sync::Arc, time::Duration};

use portcullis_audit::Receipt;
use portcullis_rpc::{
    Frame, Id, InvalidMessage, Message, MessageError, parsed_size,
    response::{self, ErrorObject, INVALID_PARAMS, INVALID_REQUEST},
};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientNotification,
        ClientRequest, GetMeta as _, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    },
    transport::Transport,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::model::Escaped;

use super::{
    in_flight::{EndedRequest, IN_USE, InFlight, REPEATED},
    introduction, line,
    memory::MAX_VALUES,
    reader::{Input, LineReader},
    shared::Shared,
    writer::LineWriter,
};

/// Interval of checks if a client that does not take its replies does so again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Longest message, in bytes, without the arguments of a call.
const MAX_MESSAGE: usize = 64 << 10;
/// The error for a longer one.
const TOO_LONG: &str = "the message has more than 65,536 bytes besides the arguments of a call";
/// The error for one with more than [`MAX_VALUES`] or, without the arguments of a call, [`MAX_MESSAGE`]
/// bytes of parsed values.
const TOO_MANY: &str = "the message has too many keys or array elements";
/// Longest progress token, in bytes: as long as an id.
const MAX_TOKEN: usize = 1024;

/// The transport that `rmcp` sees.
pub(super) struct Wire {
    reader: LineReader,
    shared: Arc<Shared>,
    under_way: Arc<InFlight>,
    /// True once a request has come; `rmcp` accepts nothing else first.
    begun: bool,
    /// True if the last line was refused here.
    refused: bool,
    /// The method of the last request. `rmcp` handles requests one by one until one begins a
    /// session, and refuses some of these itself.
    method: String,
}

impl Wire {
    /// The caller runs within a runtime with I/O.
    pub(super) fn new(
        shared: &Arc<Shared>,
        under_way: &Arc<InFlight>,
        input: Input,
        max_line: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            reader: LineReader::new(input, max_line, shared.memory.as_ref())?,
            shared: Arc::clone(shared),
            under_way: Arc::clone(under_way),
            begun: false,
            refused: false,
            method: String::new(),
        })
    }
}

impl Transport<RoleServer> for Wire {
    type Error = Infallible;

    fn send(
        &mut self,
        mut message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Infallible>> + Send + 'static {
        if let JsonRpcMessage::Error(refused) = &mut message
            && !has_receipt(&refused.error)
        {
            refused.error = self.shared.on_record(&self.method, refused.error.clone());
        }
        let answers = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        // A cancelled request gets no reply, nor does a client that reads no more.
        let ended = answers.map(|id| self.under_way.end(id));
        if ended.as_ref().is_none_or(EndedRequest::is_wanted) && !self.shared.is_closed() {
            put(&self.shared.writer, line::of(&message));
        }
        // The memory of the line is counted by now.
        drop(ended);
        std::future::ready(Ok(()))
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            let writer = &self.shared.writer;
            let waits = || writer.is_full() || (self.refused && !writer.has_room());
            while waits() && !self.reader.is_left() {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            self.refused = false;
            let pause = self.shared.gateway.pause(&self.shared.session);
            // The remaining input of a client that is gone is bounded, unless it can connect
            // again.
            if !(pause.is_zero() || (self.shared.alone && self.reader.is_over())) {
                let over = self.shared.left.cancelled();
                let _ = tokio::time::timeout(pause, over).await;
            }
            let frame = self.reader.next().await;
            // Nothing more begins for a client that reads no more, even if it is read already.
            let Some(frame) = frame.filter(|_| !self.shared.is_closed()) else {
                self.shared.leave();
                return None;
            };
            if let Some(message) = self.handle_line(frame) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

fn has_receipt(error: &ErrorData) -> bool {
    error.data.as_ref().is_some_and(|data| data.get("receipt").is_some())
}

fn put(writer: &LineWriter, line: serde_json::Result<Vec<u8>>) {
    match line {
        Ok(line) => writer.send(line),
        Err(error) => tracing::error!(%error, "a message cannot be written"),
    }
}

impl Wire {
    /// Handles one line; returns the message for `rmcp`, if any.
    fn handle_line(&mut self, frame: Frame) -> Option<ClientJsonRpcMessage> {
        let line = match frame {
            Frame::Line(line) if line.iter().all(u8::is_ascii_whitespace) => return None,
            Frame::Line(line) => line,
            Frame::TooLong { head } => {
                self.refuse(InvalidMessage::new(MessageError::TooLong, &head).into());
                return None;
            }
            Frame::GivenUp { head } => {
                let invalid = InvalidMessage::new(MessageError::TooLong, &head);
                let reason = "there is no memory for the line, or it was not complete in time";
                self.refuse(Malformed { reason: reason.to_owned(), ..invalid.into() });
                return None;
            }
            Frame::Incomplete { length, .. } => {
                self.drop(&MessageError::Incomplete.to_string(), Some(length));
                return None;
            }
        };
        // Freed on return unless the line is a request.
        let memory = self.reader.take_memory();
        let message = match parse(&line) {
            Ok(message) => message,
            Err(malformed) => {
                self.refuse(malformed);
                return None;
            }
        };
        match &message {
            JsonRpcMessage::Request(request) => {
                self.begun = true;
                self.method = request.request.method().to_owned();
                if let Err(reason) = self.under_way.begin(&request.id, memory) {
                    let (id, reason) = (Some(request.id.clone()), reason.to_owned());
                    self.refuse(Malformed { id, code: INVALID_REQUEST, reason });
                    return None;
                }
            }
            _ if !self.begun => {
                self.drop("something else came before the first request", None);
                return None;
            }
            JsonRpcMessage::Notification(note) => match &note.notification {
                ClientNotification::CancelledNotification(taken) => {
                    taken.params.request_id.iter().for_each(|id| self.under_way.cancel(id));
                    return None;
                }
                ClientNotification::CustomNotification(note) => {
                    self.drop_note(&note.method, note.params.is_some());
                    return None;
                }
                _ => {}
            },
            _ => {}
        }
        Some(message)
    }

    /// Records an unknown notification, or one by which a front reports a repeated id. The
    /// front adds parameters to such a notification if a client sends it.
    fn drop_note(&mut self, method: &str, has_params: bool) {
        let reason = match method {
            REPEATED if self.shared.is_behind_front && !has_params => IN_USE.to_owned(),
            _ => format!("there is no notification `{}`", Escaped(method)),
        };
        self.drop(&reason, None);
    }

    /// Sends an error for a line that is no valid message, and records it.
    fn refuse(&mut self, Malformed { id, code, reason }: Malformed) {
        self.refused = true;
        let data = match self.drop(&reason, None) {
            Some(receipt) => json!({ "receipt": receipt }),
            None => Value::Null,
        };
        let mut line = response::error(id, ErrorObject { code, message: reason, data });
        line.push(b'\n');
        self.shared.writer.send(line);
    }

    fn drop(&mut self, reason: &str, length: Option<usize>) -> Option<Receipt> {
        let mut facts = BTreeMap::from([("reason".to_owned(), json!(reason))]);
        facts.extend(length.map(|length| ("bytes".to_owned(), json!(length))));
        self.shared.report("mcp.dropped", facts)
    }
}

/// The error for a line that is no valid message of MCP.
#[derive(Debug)]
struct Malformed {
    id: Option<RequestId>,
    code: i64,
    reason: String,
}

impl From<InvalidMessage> for Malformed {
    fn from(invalid: InvalidMessage) -> Self {
        let id = invalid.request_id().cloned().map(request_id);
        Self { id, code: invalid.error.code(), reason: invalid.error.to_string() }
    }
}

/// Converts an id to the type of `rmcp`.
pub fn request_id(id: Id) -> RequestId {
    match id {
        Id::Number(number) => RequestId::Number(number),
        Id::Text(text) => RequestId::String(text.into()),
    }
}

/// Parses an HTTP body as a message of MCP; `None` if it is invalid.
pub fn message(body: &[u8]) -> Option<Message<'_>> {
    let message = Message::parse_body(body).ok()?;
    understand(&message, body).is_ok().then_some(message)
}

fn parse(line: &[u8]) -> Result<ClientJsonRpcMessage, Malformed> {
    let mut message = understand(&Message::parse_line(line)?, line)?;
    if let JsonRpcMessage::Request(request) = &mut message
        && let ClientRequest::InitializeRequest(initialize) = &mut request.request
    {
        introduction::shorten(&mut initialize.params);
    }
    Ok(message)
}

/// Converts a JSON-RPC message, whose text is `text`, to a message of MCP.
fn understand(message: &Message<'_>, text: &[u8]) -> Result<ClientJsonRpcMessage, Malformed> {
    let (id, method) = match message {
        Message::Request { id, .. } => (Some(request_id(id.clone())), true),
        Message::Notification { .. } => (None, true),
        Message::Reply { .. } => (None, false),
    };
    let (code, reason) = match method {
        true => (INVALID_PARAMS, "the parameters do not fit the method"),
        false => (INVALID_REQUEST, "the line is not one message of MCP"),
    };
    let malformed = |reason: &str| Malformed { id: id.clone(), code, reason: reason.to_owned() };
    if let Some(reason) = too_large(message, text) {
        return Err(malformed(reason));
    }
    let message = match message {
        // By far the most frequent method; `rmcp` would try every kind of request.
        Message::Request { id, method, params: Some(params) } if method == "tools/call" => {
            // The parser's error repeats what was sent.
            call(request_id(id.clone()), params).map_err(|_| malformed(reason))?
        }
        _ => serde_json::from_slice(text).map_err(|_| malformed(reason))?,
    };
    match &message {
        JsonRpcMessage::Request(request) if has_long_token(&request.request) => {
            Err(malformed("the progress token has more than 1,024 bytes"))
        }
        _ => Ok(message),
    }
}

/// Returns the reason why a message is too large to be kept with its values.
fn too_large(message: &Message<'_>, text: &[u8]) -> Option<&'static str> {
    let (mut length, mut values) = (text.len(), parsed_size(text));
    if values > MAX_VALUES {
        return Some(TOO_MANY);
    }
    if let Message::Request { method, params: Some(params), .. } = message
        && method == "tools/call"
        && length.max(values) > MAX_MESSAGE
    {
        let arguments = arguments(params).as_bytes();
        length = length.saturating_sub(arguments.len());
        values = values.saturating_sub(parsed_size(arguments));
    }
    match (length > MAX_MESSAGE, values > MAX_MESSAGE) {
        (true, _) => Some(TOO_LONG),
        (false, true) => Some(TOO_MANY),
        (false, false) => None,
    }
}

/// Returns the text of a call's arguments; an empty one where it has none.
fn arguments(params: &RawValue) -> &str {
    #[derive(Deserialize)]
    struct CallParams<'a> {
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
    }
    let arguments = serde_json::from_str::<CallParams<'_>>(params.get()).ok();
    arguments.and_then(|all| all.arguments).map_or("", RawValue::get)
}

fn has_long_token(request: &ClientRequest) -> bool {
    let token = request.get_meta().get("progressToken").and_then(Value::as_str);
    token.is_some_and(|token| token.len() > MAX_TOKEN)
}

fn call(id: RequestId, params: &RawValue) -> serde_json::Result<ClientJsonRpcMessage> {
    let mut params = serde_json::from_str::<CallToolRequestParams>(params.get())?;
    let meta = params.meta.take();
    let mut request = CallToolRequest::new(params);
    if let Some(meta) = meta {
        request.extensions.insert(meta);
    }
    Ok(JsonRpcMessage::request(ClientRequest::CallToolRequest(request), id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_rmcp_reads_it() {
        let line = r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"t",
            "arguments":{"path":"a"},"_meta":{"progressToken":7}}}"#
            .replace('\n', "");
        let slow: ClientJsonRpcMessage = serde_json::from_str(&line).unwrap();
        let fast = parse(line.as_bytes()).unwrap();
        assert_eq!(serde_json::to_value(&fast).unwrap(), serde_json::to_value(&slow).unwrap());
        let meta = |message: ClientJsonRpcMessage| match message {
            JsonRpcMessage::Request(mut request) => {
                request.request.get_meta_mut().get_progress_token()
            }
            _ => None,
        };
        assert!(meta(fast.clone()).is_some());
        assert_eq!(meta(fast), meta(slow));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_id_where_there_is_one() {
        let code = |line: &str| {
            let malformed = parse(line.as_bytes()).unwrap_err();
            (malformed.code, malformed.id.is_some())
        };
        assert_eq!(code("{"), (-32700, false));
        assert_eq!(code("[]"), (-32600, false));
        assert_eq!(code("7"), (-32600, false));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#), (-32600, false));
        assert_eq!(code(r#"{"id":1,"method":"ping"}"#), (-32600, true));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#), (-32700, false));
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#;
        assert_eq!(code(call), (-32602, true));
        assert!(parse(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).is_ok());
    }

    /// Messages stay in memory with their request or their session, but for the arguments.
    #[test]
    fn only_the_arguments_of_a_call_may_be_large() {
        let large = "x".repeat(MAX_MESSAGE);
        let call = |params: Value| {
            let call =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            parse(call.to_string().as_bytes())
        };
        assert!(call(json!({ "name": "t", "arguments": { "content": large } })).is_ok());
        for params in [
            json!({ "name": large }),
            json!({ "name": "t", "arguments": {}, "_meta": { "x": large } }),
            json!({ "name": "t", "arguments": {}, "requestState": large }),
        ] {
            assert_eq!(call(params).unwrap_err().reason, TOO_LONG);
        }
        for message in [
            json!({ "id": 1, "method": "resources/read", "params": { "uri": large } }),
            json!({ "method": "notifications/none", "params": { "x": large } }),
            json!({ "id": 1, "result": { "action": large } }),
        ] {
            let mut message = message;
            message["jsonrpc"] = json!("2.0");
            let refused = parse(message.to_string().as_bytes()).unwrap_err();
            assert_eq!(refused.reason, TOO_LONG);
        }
        let with = |length: usize| {
            let meta = json!({ "progressToken": "x".repeat(length) });
            call(json!({ "name": "t", "_meta": meta })).map_err(|refused| refused.code)
        };
        assert!(with(MAX_TOKEN).is_ok());
        assert_eq!(with(MAX_TOKEN + 1).err(), Some(INVALID_PARAMS));
    }

    /// A line of two megabytes took 170 once it was parsed.
    #[test]
    fn keys_and_elements_took_memory_without_bound() {
        let call = |params: &str| {
            let call = format!(
                r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"t",{params}}}}}"#
            );
            parse(call.as_bytes()).map_err(|refused| (refused.code, json!(refused.id)))
        };
        let of = |item: &str, count: usize| vec![item; count].join(",");
        let refused = Some((INVALID_PARAMS, json!(7)));
        for (name, item, fits, most) in
            [("paths", "\"\"", 1000, 16_384), ("edits", r#"{"a":0}"#, 256, 1498)]
        {
            let arguments = |count| format!(r#""arguments":{{"{name}":[{}]}}"#, of(item, count));
            assert!(call(&arguments(fits)).is_ok(), "{item}");
            assert_eq!(call(&arguments(most)).err(), refused, "{item}");
            let meta = |count| format!(r#""arguments":{{}},"_meta":{{"x":[{}]}}"#, of(item, count));
            assert!(call(&meta(fits / 4)).is_ok(), "{item}");
            assert_eq!(call(&meta(most / 8)).err(), refused, "{item}");
        }
        let note = |count| {
            let items = of("{}", count);
            let method = "notifications/none";
            format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"x":[{items}]}}}}"#)
        };
        assert!(parse(note(50).as_bytes()).is_ok());
        assert_eq!(parse(note(200).as_bytes()).unwrap_err().reason, TOO_MANY);
    }

    #[test]
    fn an_array_of_what_a_call_consists_of_is_no_call() {
        let refused = |line: &str| {
            let malformed = parse(line.as_bytes()).unwrap_err();
            (malformed.code, json!(malformed.id))
        };
        let call = r#" ["2.0",7,"tools/call",{"name":"t","arguments":{}}]"#;
        assert_eq!(refused(call), (-32600, json!(null)));
        for params in [r#"[null,"t",{},null,null,null]"#, r#"["t",{}]"#, "[]", "7", "\"t\""] {
            let call =
                format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
            assert_eq!(refused(&call), (-32602, json!(7)), "{params}");
        }
        let nothing = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":null}"#;
        assert!(parse(nothing.as_bytes()).is_ok());
    }

    #[test]
    fn a_call_that_is_too_long_or_has_too_many_keys_is_answered_by_its_id() {
        let too_long = |head: &str| InvalidMessage::new(MessageError::TooLong, head.as_bytes());
        let id = |head: &str| too_long(head).request_id().map(|id| json!(id));
        let call = r#"{"id":7,"jsonrpc":"2.0","method":"tools/call","params":{"content":"xx"#;
        assert_eq!(id(call), Some(json!(7)));
        assert_eq!(id(&call.replace('7', "\"a\"")), Some(json!("a")));
        // Replies and notifications have no request to fail.
        assert_eq!(id(r#"{"id":7,"jsonrpc":"2.0","result":{"content":"xx"#), None);
        assert_eq!(id(r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"x":"xx"#), None);
        assert_eq!(id(r#"{"id":null,"method":"x","params":{"x":"xx"#), None);
        let keys: Vec<_> = (0..300_000).map(|n| format!("\"{n}\":0")).collect();
        let call = format!(r#"{{"id":7,"method":"tools/call","params":{{{}}}}}"#, keys.join(","));
        let malformed = parse(call.as_bytes()).unwrap_err();
        assert_eq!((malformed.code, json!(malformed.id)), (-32700, json!(7)));
    }
}
