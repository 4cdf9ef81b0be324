//! Compares what was read back with what must be there.

use crate::content::Content;
use crate::model::Model;
use crate::model::{Kind, Node};
use crate::oracle::Expected;

/// The first difference, in words; `None` when everything is as it may be.
pub fn difference(expected: &Expected, found: &Model) -> Option<String> {
    for (inode, node) in &expected.model.nodes {
        let Some(theirs) = found.nodes.get(inode) else {
            return Some(format!("inode {inode:x} is missing: {}", brief(node)));
        };
        let what = match (&node.kind, &theirs.kind) {
            (Kind::File(_), Kind::File(_)) if expected.unknown.contains(inode) => None,
            (Kind::File(content), Kind::File(bytes)) => {
                let one = [content.clone()];
                let versions = expected.versions.get(inode).map_or(&one[..], Vec::as_slice);
                difference_of_content(versions, bytes)
            }
            (ours, theirs) => (ours != theirs).then(|| format!("{ours:?} is {theirs:?} now")),
        };
        let attributes = (node.mode, node.nlink, &node.xattrs) != (theirs.mode, theirs.nlink, &theirs.xattrs);
        let what = what.or_else(|| attributes.then(|| format!("{} is {} now", brief(node), brief(theirs))));
        if let Some(what) = what {
            return Some(format!("inode {inode:x}: {what}"));
        }
    }
    let extra = found.nodes.iter().find(|(inode, _)| !expected.model.nodes.contains_key(*inode));
    extra.map(|(inode, node)| format!("inode {inode:x} is there and should not be: {}", brief(node)))
}

fn difference_of_content(versions: &[Content], found: &Content) -> Option<String> {
    let sizes = versions.iter().map(Content::size);
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    if found.size() < least || found.size() > most {
        let count = versions.len();
        return Some(format!(
            "it has {} bytes, and should have {least} to {most} (of {count} contents it may have)",
            found.size()
        ));
    }
    let bytes = found.read(0, found.size());
    let at = Content::first_foreign(&bytes, versions)?;
    let ours: Vec<u8> = versions.iter().map(|version| version.byte(at)).collect();
    Some(format!(
        "byte {at} of {} is {} and should be one of {ours:?}",
        found.size(),
        bytes.get(at as usize).copied().unwrap_or(0)
    ))
}

fn brief(node: &Node) -> String {
    let kind = match &node.kind {
        Kind::Directory(entries) => format!("directory {:?}", entries.keys().collect::<Vec<_>>()),
        Kind::File(content) => format!("file of {} bytes", content.size()),
        other => format!("{other:?}"),
    };
    format!("{kind}, mode {:o}, {} links, attributes {:?}", node.mode, node.nlink, node.xattrs)
}
