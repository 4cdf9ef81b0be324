//! A document as one page that needs nothing else: no script, no file beside it, light and dark, and good on paper.

use super::document::{Block, Document, Table};

/// Colours, type and print.
const STYLE: &str = include_str!("html/style.css");

/// All of it.
pub fn render(document: &Document) -> String {
    let title = escaped(&document.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let mut numbers = 0;
    let mut has_contents = false;
    for block in &document.blocks {
        if matches!(block, Block::Heading(2, _)) && !has_contents {
            has_contents = true;
            page += &contents(document);
        }
        numbers += 1;
        page += &rendered(block, numbers);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// Links to the headings of the second level.
fn contents(document: &Document) -> String {
    let mut list = String::from("<nav aria-label=\"Contents\">\n<ul>\n");
    for (at, block) in document.blocks.iter().enumerate() {
        if let Block::Heading(2, text) = block {
            list += &format!("<li><a href=\"#b{}\">{}</a></li>\n", at + 1, escaped(text));
        }
    }
    list + "</ul>\n</nav>\n"
}

fn rendered(block: &Block, number: usize) -> String {
    match block {
        Block::Heading(level, text) => {
            let level = (*level).clamp(1, 6);
            format!("<h{level} id=\"b{number}\">{}</h{level}>\n", escaped(text))
        }
        Block::Paragraph(text) => format!("<p>{}</p>\n", escaped(text)),
        Block::Caution(text) => {
            format!("<p class=\"caution\"><strong>Caution:</strong> {}</p>\n", escaped(text))
        }
        Block::List(items) => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
            format!("<ul>\n{items}</ul>\n")
        }
        Block::Table(table) => of_table(table),
        Block::Plot(plot) => format!("<figure>\n{}</figure>\n", plot.svg(&format!("plot{number}"))),
        Block::Commands(lines) => {
            let lines: Vec<String> = lines.iter().map(|line| escaped(line)).collect();
            format!("<pre><code>{}</code></pre>\n", lines.join("\n"))
        }
    }
}

fn of_table(table: &Table) -> String {
    let class = |at: usize| if table.is_number.get(at) == Some(&true) { " class=\"n\"" } else { "" };
    let mut text =
        format!("<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead><tr>", escaped(&table.caption));
    for (at, name) in table.head.iter().enumerate() {
        text += &format!("<th scope=\"col\"{}>{}</th>", class(at), escaped(name));
    }
    text += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        text += "<tr>";
        for (at, cell) in row.iter().enumerate() {
            text += &format!("<td{}>{}</td>", class(at), escaped(cell));
        }
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

/// Text in which nothing is markup, also between quotation marks.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that turn the direction of text can make it read as something else.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                out.push('\u{fffd}')
            }
            character if character.is_control() && character != '\n' => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    // A number stays with its sign.
    out.replace(" %", "\u{a0}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_text_becomes_markup() {
        assert_eq!(
            escaped("<b onclick=\"x('y')\">&\u{202e}\u{1b}"),
            "&lt;b onclick=&quot;x(&#39;y&#39;)&quot;&gt;&amp;\u{fffd}\u{fffd}"
        );
        let mut document = Document { title: "</title><script>".into(), ..Document::default() };
        document.heading(2, "<h>");
        document.push(Block::Commands(vec!["</code>".into()]));
        let page = render(&document);
        assert!(
            !page.contains("<script>") && !page.contains("<h>") && page.matches("</code>").count() == 1,
            "{page}"
        );
        assert!(page.contains("<a href=\"#b1\">") && page.contains("id=\"b1\""));
    }
}
