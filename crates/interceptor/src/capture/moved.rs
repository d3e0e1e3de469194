//! Removed files that somebody may still have open, by what they have become.

use std::collections::HashMap;

use parking_lot::RwLock;

use crate::host::FileId;
use crate::store::ObjectRef;

type Map<V> = HashMap<FileId, V, foldhash::fast::FixedState>;

#[derive(Debug, Default)]
pub(crate) struct Moved(RwLock<Tables>);

#[derive(Debug, Default)]
struct Tables {
    latest: Map<ObjectRef>,
    /// Of files that had several names; there are few.
    earlier: Map<Vec<ObjectRef>>,
}

impl Moved {
    pub(crate) fn insert(&self, id: FileId, object: ObjectRef) {
        let mut tables = self.0.write();
        if let Some(former) = tables.latest.insert(id, object) {
            tables.earlier.entry(id).or_default().push(former);
        }
    }

    pub(crate) fn latest(&self, id: FileId) -> Option<ObjectRef> {
        self.0.read().latest.get(&id).copied()
    }

    /// All names the file has had here; some may be gone.
    pub(crate) fn all(&self, id: FileId) -> Vec<ObjectRef> {
        let tables = self.0.read();
        let Some(latest) = tables.latest.get(&id) else { return Vec::new() };
        let mut objects = tables.earlier.get(&id).cloned().unwrap_or_default();
        objects.push(*latest);
        objects
    }

    /// The object has left the store.
    pub(crate) fn remove(&self, id: FileId, object: ObjectRef) {
        let mut guard = self.0.write();
        let tables = &mut *guard;
        let mut rest = tables.earlier.remove(&id).unwrap_or_default();
        rest.extend(tables.latest.remove(&id));
        rest.retain(|other| *other != object);
        if let Some(latest) = rest.pop() {
            tables.latest.insert(id, latest);
        }
        if !rest.is_empty() {
            tables.earlier.insert(id, rest);
        }
    }

    pub(crate) fn clear(&self) {
        *self.0.write() = Tables::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Owner;

    #[test]
    fn each_name_of_a_file_comes_and_goes_by_itself() {
        let moved = Moved::default();
        let id = FileId { device: 1, inode: 2 };
        let [a, b, c] = [1, 2, 3].map(|number| ObjectRef { owner: Owner::Sequence(7), number });
        for object in [a, b, c] {
            moved.insert(id, object);
        }
        assert_eq!((moved.latest(id), moved.all(id)), (Some(c), vec![a, b, c]));
        moved.remove(id, c);
        moved.remove(id, a);
        assert_eq!((moved.latest(id), moved.all(id)), (Some(b), vec![b]));
        moved.remove(id, b);
        assert_eq!((moved.latest(id), moved.all(id)), (None, vec![]));
    }
}
