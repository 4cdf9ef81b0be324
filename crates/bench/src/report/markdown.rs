//! A document as Markdown.

use super::document::{Block, Document, Table};

/// All of it.
pub fn render(document: &Document) -> String {
    let mut text = format!("# {}\n", escaped(&document.title));
    for block in &document.blocks {
        text.push('\n');
        match block {
            Block::Heading(level, heading) => {
                text += &format!("{} {}\n", "#".repeat((*level).clamp(1, 6)), escaped(heading));
            }
            Block::Paragraph(paragraph) => text += &format!("{}\n", escaped(paragraph)),
            Block::Caution(caution) => text += &format!("> **Caution:** {}\n", escaped(caution)),
            Block::List(items) => items.iter().for_each(|item| text += &format!("- {}\n", escaped(item))),
            Block::Table(table) => text += &rendered(table),
            Block::Plot(plot) => {
                text += &format!("*Plot: {} (drawn in the HTML form)*\n", escaped(&plot.title))
            }
            Block::Commands(lines) => {
                // Four spaces: no line inside can end the block.
                lines.iter().for_each(|line| text += &format!("    {}\n", line.replace('\n', " ")));
            }
        }
    }
    text
}

fn rendered(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let marks: Vec<&str> =
        table.is_number.iter().map(|is_number| if *is_number { "---:" } else { "---" }).collect();
    let rows: String = table.rows.iter().map(|cells| row(cells)).collect();
    format!("**{}**\n\n{}| {} |\n{rows}", escaped(&table.caption), row(&table.head), marks.join(" | "))
}

/// Text in which nothing is markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(character);
            }
            '&' => out.push_str("&amp;"),
            // A line break would begin another block.
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_text_becomes_markup() {
        assert_eq!(escaped("a|b <x> [l](u) `c`\n# d"), "a\\|b \\<x\\> \\[l\\](u) \\`c\\` \\# d");
        let mut table = Table::new("c", &["name", "#rate"]);
        table.rows.push(vec!["x|y".into(), "1".into()]);
        assert_eq!(rendered(&table), "**c**\n\n| name | rate |\n| --- | ---: |\n| x\\|y | 1 |\n");
    }
}
