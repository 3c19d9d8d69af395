//! A fingerprint of the weights in a local model folder.
//!
//! Called once per process at engine start, where the model is a folder and not the id of a hub
//! with a revision. The model's configuration, and names, sizes, the complete safetensors headers
//! and one page of every tensor are hashed: cheap beside loading the weights, equal for equal
//! folders wherever they lie, and different as soon as a tensor was trained, quantized, renamed or
//! resized. The invariant: equal folders give equal fingerprints on every machine; nothing but file
//! contents and names takes part.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Separates these digests from all other uses of the hash.
const DOMAIN: &[u8] = b"tessera weights v1";

/// Endings of files that hold weights.
const ENDINGS: [&str; 6] = ["safetensors", "bin", "pt", "pth", "gguf", "npz"];

/// Files that say how the weights are used. Others, such as a tokenizer's, change no cache.
const CONFIGURATIONS: [&str; 6] = [
    "config.json",
    "hf_quant_config.json",
    "model_config.json",
    "params.json",
    "quantization_config.json",
    "quantize_config.json",
];

/// The longest configuration that is read, in bytes.
const CONFIGURATION_BYTES_MAX: u64 = 64 << 20;

/// Bytes read of a sample.
const PAGE_BYTES: u64 = 4096;

/// Samples of one file at most; a file with more tensors is sampled at even distances.
const SAMPLES_MAX: usize = 8192;

/// Samples of a file whose tensors are not known.
const SAMPLES_OF_OPAQUE: u64 = 256;

/// The longest safetensors header that is read, in bytes; the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Why a folder has no fingerprint.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The folder holds nothing that looks like weights.
    #[error(
        "{0} holds no weights (*.safetensors, *.bin, *.pt, *.pth, *.gguf, *.npz), so they cannot \
         be told from others; name them with the option \"model_revision\""
    )]
    NoWeights(PathBuf),
    /// A file that does not hold what its name says.
    #[error("{path} is not what its name says ({what}); download the model again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The system did not let it be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The fingerprint of the weights in `folder`, 32 bytes. Subfolders do not take part.
///
/// # Errors
///
/// When the folder or a file in it cannot be read, is damaged, or holds no weights.
pub fn fingerprint(folder: &Path) -> Result<[u8; 32], WeightsError> {
    let files = weight_files(folder)?;
    if files.is_empty() {
        return Err(WeightsError::NoWeights(folder.to_owned()));
    }
    let mut hash = blake3::Hasher::new();
    hash.update(DOMAIN);
    for name in CONFIGURATIONS {
        let path = folder.join(name);
        if path.is_file() {
            framed(&mut hash, name.as_bytes());
            framed(&mut hash, &WeightFile::open(path)?.whole()?);
        }
    }
    for (name, path) in files {
        let file = WeightFile::open(path)?;
        framed(&mut hash, name.as_bytes());
        hash.update(&file.length_bytes.to_le_bytes());
        let samples = if name.ends_with(".safetensors") {
            let header = file.header()?;
            framed(&mut hash, &header);
            file.tensors(&header)?
        } else {
            file.even_samples()
        };
        file.hash_samples(&mut hash, &samples)?;
    }
    Ok(hash.finalize().into())
}

/// Name and path of every file of weights, sorted by name.
fn weight_files(folder: &Path) -> Result<Vec<(String, PathBuf)>, WeightsError> {
    let failed = |source| WeightsError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let name = path.file_name().and_then(|name| name.to_str());
        if let (Some(ending), Some(name)) = (ending, name) {
            // A link into a download cache is a file too.
            if ENDINGS.contains(&ending) && path.is_file() {
                files.push((name.to_owned(), path));
            }
        }
    }
    files.sort();
    Ok(files)
}

fn framed(hash: &mut blake3::Hasher, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

struct WeightFile {
    file: File,
    path: PathBuf,
    length_bytes: u64,
}

/// Start and length of a piece of a file, in bytes.
type Sample = (u64, u64);

impl WeightFile {
    fn open(path: PathBuf) -> Result<Self, WeightsError> {
        let open = || {
            let file = File::open(&path)?;
            let length_bytes = file.metadata()?.len();
            Ok((file, length_bytes))
        };
        match open() {
            Ok((file, length_bytes)) => Ok(Self {
                file,
                path,
                length_bytes,
            }),
            Err(source) => Err(WeightsError::Io { path, source }),
        }
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, WeightsError> {
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length_bytes);
        let length = usize::try_from(length).ok().filter(|_| fits);
        let mut bytes = vec![0; length.ok_or_else(|| self.damaged("it is cut short"))?];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|source| WeightsError::Io {
            path: self.path.clone(),
            source,
        })?;
        Ok(bytes)
    }

    fn damaged(&self, what: &'static str) -> WeightsError {
        WeightsError::Damaged {
            path: self.path.clone(),
            what,
        }
    }

    /// All bytes of a small file.
    fn whole(&self) -> Result<Vec<u8>, WeightsError> {
        if self.length_bytes > CONFIGURATION_BYTES_MAX {
            return Err(self.damaged("its configuration is too long"));
        }
        self.read(0, self.length_bytes)
    }

    /// The JSON header of a safetensors file.
    fn header(&self) -> Result<Vec<u8>, WeightsError> {
        let length = self.read(0, 8)?;
        let length = u64::from_le_bytes(length.try_into().map_err(|_| self.damaged("no length"))?);
        if length > HEADER_BYTES_MAX {
            return Err(self.damaged("its header is too long"));
        }
        self.read(8, length)
    }

    /// The middle page of every tensor, or of as many tensors at even distances as may be read.
    fn tensors(&self, header: &[u8]) -> Result<Vec<Sample>, WeightsError> {
        let entries: Map<String, Value> =
            serde_json::from_slice(header).map_err(|_| self.damaged("its header is not JSON"))?;
        let data = 8 + header.len() as u64;
        let mut pages = Vec::with_capacity(entries.len());
        for entry in entries.iter().filter(|(name, _)| *name != "__metadata__") {
            let place = |index| entry.1.get("data_offsets")?.get(index)?.as_u64();
            let (Some(start), Some(end)) = (place(0), place(1)) else {
                return Err(self.damaged("a tensor has no place"));
            };
            let length = end
                .checked_sub(start)
                .ok_or_else(|| self.damaged("a tensor is upside down"))?;
            let page = length.min(PAGE_BYTES);
            let middle = start
                .checked_add((length - page) / 2)
                .and_then(|at| at.checked_add(data));
            pages.push((
                middle.ok_or_else(|| self.damaged("a tensor lies outside"))?,
                page,
            ));
        }
        pages.sort_unstable();
        let step = pages.len().div_ceil(SAMPLES_MAX).max(1);
        Ok(pages.into_iter().step_by(step).collect())
    }

    /// Pages at even distances, the first and the last included.
    fn even_samples(&self) -> Vec<Sample> {
        let page = self.length_bytes.min(PAGE_BYTES);
        let last = self.length_bytes - page;
        let steps = (last / PAGE_BYTES).clamp(1, SAMPLES_OF_OPAQUE);
        (0..=steps)
            .map(|step| (last / steps * step, page))
            .chain([(last, page)])
            .collect()
    }

    fn hash_samples(
        &self,
        hash: &mut blake3::Hasher,
        samples: &[Sample],
    ) -> Result<(), WeightsError> {
        for &(offset, length) in samples {
            hash.update(&offset.to_le_bytes());
            framed(hash, &self.read(offset, length)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// A file of two tensors of 64 KiB with the given bytes.
    fn safetensors(first: u8, second: u8) -> Vec<u8> {
        let size = 65_536;
        let header = json!({
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
            "b": {"dtype": "U8", "shape": [size], "data_offsets": [size, 2 * size]},
        });
        let header = serde_json::to_vec(&header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(vec![first; size]);
        file.extend(vec![second; size]);
        file
    }

    fn folder(files: &[(&str, &[u8])]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    fn print(files: &[(&str, &[u8])]) -> [u8; 32] {
        fingerprint(folder(files).path()).unwrap()
    }

    #[test]
    fn equal_weights_in_other_folders_are_equal() {
        let (one, two) = (safetensors(1, 2), safetensors(3, 4));
        let there = print(&[("x.safetensors", &one), ("y.safetensors", &two)]);
        let here = print(&[
            ("y.safetensors", &two),
            ("x.safetensors", &one),
            ("README.md", b""),
        ]);
        assert_eq!(there, here);
    }

    #[test]
    fn every_difference_of_the_weights_shows() {
        let file = safetensors(1, 2);
        let prints = [
            print(&[("x.safetensors", &file)]),
            print(&[("y.safetensors", &file)]),
            print(&[("x.safetensors", &safetensors(1, 3))]),
            print(&[("x.safetensors", &safetensors(0, 2))]),
            print(&[("x.safetensors", &[&file[..], &[0]].concat())]),
            print(&[("x.safetensors", &file), ("y.safetensors", &file)]),
            print(&[("x.bin", &file)]),
            print(&[("x.safetensors", &file), ("config.json", b"{}")]),
            print(&[("x.safetensors", &file), ("config.json", b"{ }")]),
        ];
        for (index, one) in prints.iter().enumerate() {
            assert!(
                prints[..index].iter().all(|other| other != one),
                "print {index} is not new"
            );
        }
    }

    #[test]
    fn opaque_file_is_sampled_at_both_ends() {
        let mut bytes = vec![7; 3_000_000];
        let plain = print(&[("w.bin", &bytes)]);
        bytes[0] = 8;
        let first = print(&[("w.bin", &bytes)]);
        bytes[0] = 7;
        *bytes.last_mut().unwrap() = 8;
        let last = print(&[("w.bin", &bytes)]);
        assert!(plain != first && plain != last);
        assert_eq!(print(&[("w.bin", b"")]), print(&[("w.bin", b"")]));
    }

    #[test]
    fn folders_without_whole_weights_are_refused() {
        let error = |files: &[(&str, &[u8])]| {
            fingerprint(folder(files).path())
                .expect_err("it must be refused")
                .to_string()
        };
        assert!(error(&[("config.json", b"{}")]).contains("model_revision"));
        let file = safetensors(1, 2);
        assert!(error(&[("x.safetensors", &file[..100_000])]).contains("cut short"));
        assert!(error(&[("x.safetensors", b"abc")]).contains("cut short"));
        assert!(error(&[("x.safetensors", &[0xff; 64])]).contains("too long"));
        assert!(error(&[("x.safetensors", b"\x03\0\0\0\0\0\0\0abc")]).contains("not JSON"));
        let upside_down = br#"{"a":{"data_offsets":[9,3]}}"#;
        let file = [&(upside_down.len() as u64).to_le_bytes()[..], upside_down].concat();
        assert!(error(&[("x.safetensors", &file)]).contains("upside down"));
        let missing = fingerprint(Path::new("/no/such/folder")).unwrap_err();
        assert!(matches!(missing, WeightsError::Io { .. }), "{missing}");
    }
}
