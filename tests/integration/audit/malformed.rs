//! Logs with lines that are no records.

use super::*;

#[test]
fn verify_names_lines_that_are_no_records() {
    let text = seen("malformed-record") + &seen("duplicate-key") + &seen("unsupported-version");
    insta::assert_snapshot!(text, @r#"
# malformed-record-array
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not exactly one JSON object
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-blank
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-bom
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-counts
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `counts` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-crlf
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not exactly one JSON object
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-deep
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not valid JSON at byte 296
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-empty
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not exactly one JSON object
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-float
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `seq` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-infinite
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not valid JSON at byte 47
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-infinite-integer
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not valid JSON at byte 351
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-json
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not valid JSON at byte 8
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-key
damaged: malformed-record in seg-000000.jsonl, record 0, line 1
  the line is not valid JSON at byte 82
damaged: broken-link in seg-000000.jsonl, record 1, line 2
  `prev` is not the hash of record 0: one of the two was changed
not intact: the chain breaks after 0 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-large
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `bytes` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-minus
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `bytes` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-missing
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the field `nonce` is missing
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-null
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `path` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-outcome
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `of` is missing
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-surrogate
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not valid JSON at byte 50
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-surrogate-key
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the line is not valid JSON at byte 50
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-time
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `t` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-time-date
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `t` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-time-leap-day
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `t` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-time-leap-second
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `t` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-two
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not valid JSON at byte 4
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-type
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `path` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-upper
damaged: malformed-record in seg-000000.jsonl, record 5, line 6
  the field `prev` has a wrong type or form
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# malformed-record-utf8
damaged: malformed-record in seg-000000.jsonl, record 3, line 4
  the line is not UTF-8
damaged: broken-link in seg-000000.jsonl, record 4, line 5
  `prev` is not the hash of record 3: one of the two was changed
not intact: the chain breaks after 3 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# duplicate-key
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "seq" stands twice in the line
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# duplicate-key-escaped
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "seq" stands twice in the line
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# duplicate-key-prev
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "prev" stands twice in the line
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# duplicate-key-unknown
damaged: duplicate-key in seg-000000.jsonl, record 5, line 6
  the key "new" stands twice in the line
not intact: the chain breaks after 5 records
  help: keep a copy of the state directory and find out who changed it; `portcullis audit recover` sets everything from the first damage on aside, so that gateways can start again
# unsupported-version
newer: a newer portcullis wrote seg-000000.jsonl from record 5 on: format version 2 is not supported
verified: the 5 records before it
  help: use the portcullis that wrote it; if none did, the log was changed: compare it with a copy
"#);
}
