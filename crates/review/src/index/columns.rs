//! The columns of an index: distinct texts, and for each line the number of its text.

use std::collections::HashMap;

use portcullis_audit::RecordView;

use crate::{Field, filter::Test};

/// The fields that filters have conditions on.
const FIELDS: [Field; 14] = [
    Field::Kind,
    Field::Session,
    Field::Agent,
    Field::User,
    Field::Transport,
    Field::Op,
    Field::Path,
    Field::Resolved,
    Field::To,
    Field::Decision,
    Field::Rule,
    Field::Result,
    Field::Before,
    Field::After,
];

/// The columns under construction.
pub(super) struct Columns(Vec<ColumnBuilder>);

struct ColumnBuilder {
    field: Field,
    known: HashMap<Box<str>, u32>,
    texts: Vec<u8>,
    codes: Vec<u32>,
}

/// A column as stored.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) texts: Vec<u8>,
    pub(super) codes: Vec<u8>,
    pub(super) width: usize,
}

impl Columns {
    pub(super) fn new() -> Self {
        let gathered = |field| ColumnBuilder {
            field,
            known: HashMap::new(),
            texts: Vec::new(),
            codes: Vec::new(),
        };
        Self(FIELDS.map(gathered).into())
    }

    pub(super) fn add(&mut self, record: &RecordView<'_>) {
        for column in &mut self.0 {
            let code = match column.field.of(record) {
                Some(text) => column.code(Test::shortened(column.field, &text)),
                None => 0,
            };
            column.codes.push(code);
        }
    }

    pub(super) fn finish(self) -> Vec<Column> {
        self.0.into_iter().map(ColumnBuilder::finish).collect()
    }
}

impl ColumnBuilder {
    fn code(&mut self, text: &str) -> u32 {
        if let Some(code) = self.known.get(text) {
            return *code;
        }
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.texts.extend_from_slice(&length.to_le_bytes());
        self.texts.extend_from_slice(text.as_bytes());
        let code = u32::try_from(self.known.len() + 1).unwrap_or(u32::MAX);
        self.known.insert(text.into(), code);
        code
    }

    fn finish(self) -> Column {
        let width = match self.known.len() {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 4,
        };
        let codes = self.codes.iter();
        let codes = codes.flat_map(|code| code.to_le_bytes().into_iter().take(width)).collect();
        Column { name: self.field.as_str(), texts: self.texts, codes, width }
    }
}

/// Returns for each code whether its text is wanted; code 0 stands for no value and is not. `None`
/// if the texts are malformed.
pub(super) fn accepted(mut texts: &[u8], wants: impl Fn(&str) -> bool) -> Option<Vec<bool>> {
    let mut accepted = vec![false];
    while !texts.is_empty() {
        let (length, rest) = texts.split_first_chunk::<4>()?;
        let (text, rest) =
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        accepted.push(wants(str::from_utf8(text).ok()?));
        texts = rest;
    }
    Some(accepted)
}

/// Marks the lines whose code is accepted.
pub(super) fn mark(
    codes: &[u8],
    width: usize,
    accepted: &[bool],
    lines: &mut [bool],
) -> Option<()> {
    if width == 0 || width > 4 || codes.len() != lines.len() * width {
        return None;
    }
    for (line, code) in lines.iter_mut().zip(codes.chunks_exact(width)) {
        let code = code.iter().rev().fold(0, |code, byte| code << 8 | usize::from(*byte));
        *line |= *accepted.get(code)?;
    }
    Some(())
}
