//! Kernel modules, each after those it needs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What the kernel's build appends to a signed module.
const SIGNATURE_MAGIC: &[u8] = b"~Module signature appended~\n";
/// The last word before it: how long the signature is, big endian, in a structure of 12 bytes.
const SIGNATURE_INFO_BYTES: usize = 12;

/// All modules below a directory, by name.
#[derive(Debug)]
pub(crate) struct Modules(BTreeMap<String, PathBuf>);

impl Modules {
    pub(crate) fn below(dir: &Path) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
                    found.insert(name, entry.path());
                }
            }
        }
        Ok(Self(found))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The wanted ones and all they need, in an order in which they can be loaded; without those in
    /// `loaded`, to which they are added.
    pub(crate) fn closure(
        &self,
        wanted: &[&str],
        loaded: &mut Vec<String>,
    ) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut result = Vec::new();
        for name in wanted {
            self.visit(name, loaded, &mut result)?;
        }
        Ok(result)
    }

    fn visit(
        &self,
        name: &str,
        loaded: &mut Vec<String>,
        result: &mut Vec<(String, Vec<u8>)>,
    ) -> io::Result<()> {
        if loaded.iter().any(|other| other == name) {
            return Ok(());
        }
        loaded.push(name.to_owned());
        let path = self.0.get(name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("the kernel has no module `{name}`"))
        })?;
        let mut module = std::fs::read(path)?;
        for needed in dependencies(&module) {
            self.visit(&needed, loaded, result)?;
        }
        strip_signature(&mut module);
        result.push((name.to_owned(), module));
        Ok(())
    }
}

/// Words of one name are joined by either sign.
fn module_name(file: &str) -> Option<String> {
    file.strip_suffix(".ko").map(|name| name.replace('-', "_"))
}

/// From the line `depends=a,b` among what a module tells of itself.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let rest = &module[at + key.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let list = String::from_utf8_lossy(&rest[..end]);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// The package was checked when it was fetched; to check each module again takes the guest longer
/// than to load it.
fn strip_signature(module: &mut Vec<u8>) {
    let Some(rest) = module.strip_suffix(SIGNATURE_MAGIC) else { return };
    let length = rest.last_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize);
    let end = length.and_then(|length| rest.len().checked_sub(length + SIGNATURE_INFO_BYTES));
    if let Some(end) = end {
        module.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, depends: &str| {
            std::fs::write(dir.path().join(name), format!("\0depends={depends}\0rest")).unwrap();
        };
        write("virtio.ko", "");
        write("virtio-ring.ko", "virtio");
        write("console.ko", "virtio,virtio_ring");
        let modules = Modules::below(dir.path()).unwrap();
        let mut loaded = Vec::new();
        let names = |list: Vec<(String, Vec<u8>)>| -> Vec<_> {
            list.into_iter().map(|(name, _)| name).collect()
        };
        let first = modules.closure(&["console"], &mut loaded).unwrap();
        assert_eq!(names(first), ["virtio", "virtio_ring", "console"]);
        let again = modules.closure(&["virtio_ring"], &mut loaded).unwrap();
        assert!(names(again).is_empty());
        assert!(modules.closure(&["nothing"], &mut loaded).is_err());
    }

    #[test]
    fn the_signature_goes_and_the_module_stays() {
        let mut module = b"module".to_vec();
        module.extend(b"sig");
        module.extend([0; 8]);
        module.extend(3_u32.to_be_bytes());
        module.extend(SIGNATURE_MAGIC);
        strip_signature(&mut module);
        assert_eq!(module, b"module");
    }
}
