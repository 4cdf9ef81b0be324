//! A report as plain blocks, the same for every form it is written in.

use super::plot::Plot;

/// A table. Cells are text, never markup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Whether a column holds numbers.
    pub is_number: Vec<bool>,
    /// Rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns with a `#` before their name hold numbers.
    pub fn new(caption: &str, head: &[&str]) -> Table {
        Table {
            caption: caption.to_owned(),
            head: head.iter().map(|name| name.trim_start_matches('#').to_owned()).collect(),
            is_number: head.iter().map(|name| name.starts_with('#')).collect(),
            rows: Vec::new(),
        }
    }
}

/// A piece of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A heading of a level from 1.
    Heading(usize, String),
    /// Text.
    Paragraph(String),
    /// Something that must be seen.
    Caution(String),
    /// Items.
    List(Vec<String>),
    /// Numbers.
    Table(Table),
    /// A picture of numbers that stand in a table beside it.
    Plot(Plot),
    /// Commands, one a line.
    Commands(Vec<String>),
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The title of the page.
    pub title: String,
    /// In order.
    pub blocks: Vec<Block>,
}

impl Document {
    /// Adds a block.
    pub fn push(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// Adds text.
    pub fn say(&mut self, text: impl Into<String>) {
        self.push(Block::Paragraph(text.into()));
    }

    /// Adds a heading.
    pub fn heading(&mut self, level: usize, text: impl Into<String>) {
        self.push(Block::Heading(level, text.into()));
    }
}
