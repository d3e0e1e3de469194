#![allow(clippy::unwrap_used)]

use super::*;

const ME: ClientId = ClientId(0);

fn tell(map: &PathMap, parent: u64, name: &str, inode: u64, is_dir: bool) {
    let name = (parent, name.as_bytes());
    assert!(map.found(ME, map.since(), name, found(inode, is_dir)).unwrap().is_some());
}

/// Whose number on the host is the same.
fn found(inode: u64, is_dir: bool) -> Found {
    Found { inode, is_dir, number: inode }
}

fn path(map: &PathMap, inode: u64) -> String {
    map.path(inode).unwrap().to_string()
}

fn rename(map: &PathMap, from: (u64, &str), to: (u64, &str), exchange: bool) {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    map.renaming().done(from, to, exchange);
}

/// `src` (2) with `main` (3) in it, and `doc` (4).
fn sample() -> PathMap {
    let map = PathMap::new(ROOT, 2);
    tell(&map, ROOT, "src", 2, true);
    tell(&map, 2, "main", 3, false);
    tell(&map, ROOT, "doc", 4, true);
    map
}

/// VF-01, VF-02, VF-03
#[test]
fn paths_lead_from_the_root() {
    let map = sample();
    assert_eq!(path(&map, 3), "src/main");
    assert_eq!(map.child(2, b"new").unwrap().to_string(), "src/new");
    assert_eq!(map.path(ROOT).unwrap(), RelPathBuf::default());
    assert!(map.path(99).is_err());
    assert!(map.found(ME, map.since(), (99, b"x"), found(5, false)).is_err());
}

/// VF-01
#[test]
fn a_renamed_directory_takes_everything_below_along() {
    let map = sample();
    rename(&map, (ROOT, "src"), (4, "old"), false);
    assert_eq!(path(&map, 3), "doc/old/main");
    assert!(map.may_be_dir(4, b"old"));
    rename(&map, (4, "old"), (ROOT, "src"), false);
    assert_eq!(path(&map, 3), "src/main");
}

#[test]
fn a_replaced_file_keeps_its_name_until_it_is_forgotten() {
    let map = sample();
    tell(&map, 2, "new", 5, false);
    rename(&map, (2, "new"), (2, "main"), false);
    assert_eq!(path(&map, 5), "src/main");
    assert_eq!(path(&map, 3), "src/main", "what an open handle of it was called");
    map.forget(ME, 3, 1);
    assert!(map.path(3).is_err());
    assert_eq!(path(&map, 5), "src/main");
}

#[test]
fn exchanged_names_stand_for_each_other() {
    let map = sample();
    rename(&map, (ROOT, "src"), (ROOT, "doc"), true);
    assert_eq!(path(&map, 3), "doc/main");
    assert_eq!(path(&map, 4), "src");
    assert_eq!(path(&map, 2), "doc");
}

#[test]
fn a_file_with_two_names_is_called_by_one_that_is_left() {
    let map = sample();
    tell(&map, 4, "link", 3, false);
    assert_eq!(path(&map, 3), "doc/link");
    map.removed(4, b"link");
    assert_eq!(path(&map, 3), "src/main");
    map.removed(2, b"main");
    assert_eq!(path(&map, 3), "src/main");
    tell(&map, 4, "again", 3, false);
    assert_eq!(path(&map, 3), "doc/again");
}

#[test]
fn a_rename_between_two_names_of_one_file_leaves_both() {
    let map = sample();
    tell(&map, 2, "link", 3, false);
    rename(&map, (2, "main"), (2, "link"), false);
    map.removed(2, b"link");
    assert_eq!(path(&map, 3), "src/main");
}

#[test]
fn a_directory_found_elsewhere_was_moved_by_somebody_else() {
    let map = sample();
    tell(&map, 4, "src", 2, true);
    assert_eq!(path(&map, 3), "doc/src/main");
    assert!(map.may_be_dir(ROOT, b"src"), "unknown names may be anything");
}

#[test]
fn a_name_that_stands_for_something_new_leaves_the_old_inode() {
    let map = sample();
    tell(&map, 4, "link", 3, false);
    tell(&map, 2, "main", 6, false);
    assert_eq!(path(&map, 6), "src/main");
    assert_eq!(path(&map, 3), "doc/link");
}

#[test]
fn parents_stay_as_long_as_their_children() {
    let map = sample();
    map.forget(ME, 2, 1);
    assert_eq!(path(&map, 3), "src/main");
    map.forget(ME, 3, 1);
    assert!(map.path(3).is_err());
    assert!(map.path(2).is_err());
    map.forget(ME, 4, 1);
    assert_eq!(map.tables.read().nodes.len(), 1);
    map.forget(ME, ROOT, u64::MAX);
    assert_eq!(map.path(ROOT).unwrap(), RelPathBuf::default());
}

/// VF-01
#[test]
fn forgetting_counts() {
    let map = sample();
    tell(&map, 2, "main", 3, false);
    assert!(map.told_again(ME, 3));
    assert!(!map.forget(ME, 3, 2));
    assert_eq!(path(&map, 3), "src/main");
    assert!(map.forget(ME, 3, 7));
    assert!(map.path(3).is_err());
    assert!(!map.told_again(ME, 3));
}

#[test]
fn a_lookup_that_overlaps_a_rename_is_repeated() {
    let map = sample();
    let since = map.since();
    rename(&map, (ROOT, "src"), (4, "src"), false);
    assert_eq!(map.found(ME, since, (ROOT, b"src"), found(2, true)).unwrap(), None);
    assert_eq!(path(&map, 2), "doc/src");
}

/// VF-03
#[test]
fn a_circle_made_outside_is_no_endless_path() {
    let map = sample();
    tell(&map, 2, "inner", 7, true);
    tell(&map, 7, "src", 2, true);
    assert_eq!(map.path(7).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn what_one_client_forgets_the_others_still_know() {
    let map = sample();
    let other = ClientId(1);
    let told = map.found(other, map.since(), (2, b"main"), found(3, false)).unwrap();
    assert_eq!(told, Some(Told::First));
    assert!(map.forget(other, 3, 7), "more than it was told of");
    assert!(!map.forget(other, 3, 1));
    assert!(!map.forget(other, 4, 1), "it never heard of it");
    assert_eq!(path(&map, 3), "src/main");
}

#[test]
fn a_client_that_goes_takes_nothing_of_others_with_it() {
    let map = sample();
    let other = ClientId(1);
    let told = [(2, "main", 3), (2, "main", 3), (ROOT, "new", 9)].map(|(parent, name, inode)| {
        map.found(other, map.since(), (parent, name.as_bytes()), found(inode, false)).unwrap()
    });
    assert_eq!(told, [Told::First, Told::Again, Told::First].map(Some));
    let mut left = map.leave(other);
    left.sort_unstable();
    assert_eq!(left, [3, 9]);
    assert!(map.path(9).is_err());
    assert_eq!(path(&map, 3), "src/main");
    assert!(map.leave(other).is_empty());
    assert_eq!(map.leave(ME).len(), 3);
    assert_eq!(map.tables.read().nodes.len(), 1);
}

#[test]
fn every_client_that_is_there_hears_of_crowds() {
    let map = PathMap::new(ROOT, 2);
    let heard: [Arc<AtomicUsize>; 2] = Default::default();
    for (client, heard) in (0..).map(ClientId).zip(&heard) {
        let heard = Arc::clone(heard);
        let count = move || {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        map.when_crowded(client, 8, Box::new(count));
    }
    let crowd = |first: u64| {
        for inode in first..first + 7 {
            tell(&map, ROOT, &inode.to_string(), inode, false);
        }
    };
    crowd(2);
    let both = heard.each_ref().map(|heard| heard.load(Ordering::Relaxed));
    assert!(both[0] > 0 && both[0] == both[1], "{both:?}");
    map.leave(ClientId(1));
    crowd(20);
    let one = heard.each_ref().map(|heard| heard.load(Ordering::Relaxed));
    assert!(one[0] > both[0] && one[1] == both[1], "{one:?}");
}

/// Its place stays, for those who have it open; that is no name.
#[test]
fn a_name_that_was_removed_and_is_found_again_is_one_again() {
    let map = sample();
    assert!(!map.may_be_dir(2, b"main"));
    map.removed(2, b"main");
    assert_eq!(path(&map, 3), "src/main");
    assert!(map.may_be_dir(2, b"main"), "nobody knows");
    tell(&map, 2, "main", 3, false);
    assert!(!map.may_be_dir(2, b"main"));
}
