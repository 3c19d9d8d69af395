//! The archive that a kernel unpacks as its first files: cpio, format "newc".
//!
//! Called by [`crate::guest`]. The invariant: every entry is padded as the format asks, so that the
//! kernel reads the whole archive or refuses it.

/// The type bits of a folder and of a file, before the permissions.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// An archive in the making.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds an empty folder.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER | 0o755, &[]);
    }

    /// Adds a file that anybody may read and run.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE | 0o755, content);
    }

    /// The archive with its end.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // Its number, mode, owner, group, links, time; its size; four numbers of devices; the
        // length of its name with the zero behind it; no check.
        let before = [self.entries, mode, 0, 0, 1, 0];
        let after = [0_usize, 0, 0, 0, path.len() + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        let mut field = |value: String| self.bytes.extend_from_slice(value.as_bytes());
        before
            .iter()
            .for_each(|value| field(format!("{value:08x}")));
        field(format!("{:08x}", content.len()));
        after.iter().for_each(|value| field(format!("{value:08x}")));
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_header_its_name_and_its_content_each_padded_to_four() {
        let mut archive = Archive::default();
        archive.folder("dev");
        let at = archive.bytes.len();
        assert_eq!(at, (6 + 13 * 8 + 4_usize).next_multiple_of(4));
        archive.file("init", b"hello");
        let entry = &archive.bytes[at..];
        assert_eq!(&entry[..14], b"07070100000002");
        assert_eq!(&entry[14..22], b"000081ed", "a file with mode 755");
        assert_eq!(&entry[54..62], b"00000005", "its size");
        assert_eq!(&entry[94..102], b"00000005", "its name and a zero");
        assert_eq!(&entry[110..116], b"init\0\0");
        assert_eq!(&entry[116..], b"hello\0\0\0");
        let archive = archive.finish();
        assert!(archive.ends_with(b"TRAILER!!!\0\0\0\0"), "{archive:?}");
        assert_eq!(archive.len() % 4, 0);
    }
}
