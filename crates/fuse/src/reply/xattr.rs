//! The answer to GETXATTR and LISTXATTR, which is either a size or a value.

use super::ReplyBuffer;
use crate::errno::Errno;
use crate::protocol::wire;
use zerocopy::IntoBytes;

/// The reply to GETXATTR or LISTXATTR. Append the value (or each name with its NUL); whether the caller wants the value or
/// only its size, and whether it fits, is this type's business.
pub struct XattrBuffer<'a, 'b> {
    reply: &'b mut ReplyBuffer<'a>,
    /// 0: only the size is wanted.
    size_wanted: usize,
    size: usize,
}

impl<'a, 'b> XattrBuffer<'a, 'b> {
    pub(crate) fn new(reply: &'b mut ReplyBuffer<'a>, size_wanted: u32) -> Self {
        Self { reply, size_wanted: size_wanted as usize, size: 0 }
    }

    /// Appends to the value.
    pub fn put(&mut self, bytes: &[u8]) {
        self.size = self.size.saturating_add(bytes.len());
        if self.size_wanted > 0 {
            self.reply.put(bytes);
        }
    }

    /// Appends a name to a list of names.
    pub fn put_name(&mut self, name: &[u8]) {
        self.put(name);
        self.put(&[0]);
    }

    /// Turns what was appended into the reply: size, value, or ERANGE.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        if self.size_wanted == 0 {
            let size = u32::try_from(self.size).map_err(|_| Errno::E2BIG)?;
            self.reply.put(wire::GetxattrOut { size, padding: 0 }.as_bytes());
            return Ok(());
        }
        if self.size > self.reply.len() { Err(Errno::ERANGE) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(size_wanted: u32) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0u8; size_wanted.max(8) as usize];
        let mut reply = ReplyBuffer::new(&mut bytes);
        let mut value = XattrBuffer::new(&mut reply, size_wanted);
        value.put_name(b"user.a");
        value.put_name(b"user.b");
        value.finish()?;
        let len = reply.len();
        bytes.truncate(len);
        Ok(bytes)
    }

    #[test]
    fn size_value_and_erange_are_told_apart() {
        assert_eq!(answer(0).unwrap(), [14, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(answer(14).unwrap(), b"user.a\0user.b\0");
        assert_eq!(answer(13).unwrap_err(), Errno::ERANGE);
    }
}
