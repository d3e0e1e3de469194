//! What the open step has captured of each inode.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use rangemap::RangeSet;

use super::listing::Listing;
use super::{Span, block_size};
use crate::host::FileId;

const SHARDS: usize = 64;
/// A bit for each block of 32 gibibytes.
const MAX_WORDS: u64 = 1 << 17;
/// Captured at once of a file that is overwritten from front to back, at most.
const MOST_AT_ONCE: u64 = 64 << 10;

const CREATED: u8 = 1;
const TIMES: u8 = 2;
const ATTRIBUTES: u8 = 4;
const LENGTH: u8 = 8;
const WHOLE: u8 = 16;

/// What has to be captured before a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Attributes,
    Content(Span),
}

/// Inodes the step has touched, by identity: hard links share one state.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
}

type Shard = HashMap<FileId, Slot, foldhash::fast::FixedState>;

/// A step makes many files of which nothing more is to be known.
#[derive(Debug)]
enum Slot {
    Created,
    Known(Arc<InodeState>),
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, id: FileId) -> MutexGuard<'_, Shard> {
        self.shards[(id.inode as usize) % SHARDS].lock()
    }

    pub(crate) fn state(&self, id: FileId) -> Arc<InodeState> {
        let mut shard = self.shard(id);
        let slot = shard.entry(id).or_insert_with(|| Slot::Known(Arc::default()));
        if let Slot::Created = slot {
            *slot = Slot::Known(Arc::new(InodeState::created()));
        }
        match slot {
            Slot::Known(state) => Arc::clone(state),
            Slot::Created => Arc::new(InodeState::created()),
        }
    }

    /// Asks without making an entry, and without touching its reference count.
    pub(crate) fn check(&self, id: FileId, ask: impl FnOnce(&InodeState) -> bool) -> bool {
        match self.shard(id).get(&id) {
            None => false,
            Some(Slot::Known(state)) => ask(state),
            Some(Slot::Created) => ask(&InodeState::created()),
        }
    }

    /// The inode is new in this step, whatever had its number before.
    pub(crate) fn mark_created(&self, id: FileId) {
        self.shard(id).insert(id, Slot::Created);
    }

    /// The inode is gone; its number may come back as another file.
    pub(crate) fn forget(&self, id: FileId) {
        self.shard(id).remove(&id);
    }
}

/// What has been captured of one inode.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    flags: AtomicU8,
    /// The length before the step; valid with `LENGTH`.
    length: AtomicU64,
    /// Which blocks of the former content are captured.
    blocks: OnceLock<Blocks>,
    /// The stretch that was captured last; changes only while the inode is being captured.
    last_start: AtomicU64,
    last_end: AtomicU64,
    /// Held while the inode is being captured, so that each part is captured once.
    pub(crate) capturing: Mutex<()>,
    /// Of a directory.
    listing: OnceLock<Box<Mutex<Listing>>>,
}

/// Captured blocks.
#[derive(Debug)]
enum Blocks {
    /// One bit for each, read without a lock.
    Bits(Box<[AtomicU64]>),
    /// Of a file so large, and then sparse, that a bit for each would be too many.
    Ranges(Mutex<RangeSet<u64>>),
}

impl Blocks {
    fn of(length: u64) -> Self {
        let words = length.div_ceil(block_size(length)).div_ceil(64);
        if words > MAX_WORDS {
            return Self::Ranges(Mutex::default());
        }
        Self::Bits((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, blocks: Range<u64>) {
        match self {
            Self::Ranges(_) if blocks.is_empty() => {}
            Self::Ranges(ranges) => ranges.lock().insert(blocks),
            Self::Bits(words) => {
                for block in blocks {
                    let word = usize::try_from(block / 64).ok().and_then(|word| words.get(word));
                    if let Some(word) = word {
                        word.fetch_or(1 << (block % 64), Ordering::AcqRel);
                    }
                }
            }
        }
    }

    /// The first stretch at or behind `from` that is not captured, as far as `end`.
    fn gap(&self, from: u64, end: u64) -> Option<Range<u64>> {
        match self {
            Self::Ranges(ranges) => {
                (from < end).then(|| ranges.lock().gaps(&(from..end)).next()).flatten()
            }
            Self::Bits(words) => {
                let has = |block: &u64| {
                    let word = usize::try_from(block / 64).ok().and_then(|word| words.get(word));
                    word.is_some_and(|w| w.load(Ordering::Acquire) & (1 << (block % 64)) != 0)
                };
                let first = (from..end).find(|block| !has(block))?;
                let behind = (first..end).find(has).unwrap_or(end);
                Some(first..behind)
            }
        }
    }
}

impl InodeState {
    fn created() -> Self {
        Self { flags: AtomicU8::new(CREATED), ..Self::default() }
    }

    fn has(&self, flags: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    fn add(&self, flags: u8) {
        self.flags.fetch_or(flags, Ordering::AcqRel);
    }

    pub(crate) fn listing(&self) -> MutexGuard<'_, Listing> {
        self.listing.get_or_init(Box::default).lock()
    }

    /// An entry of this name is about to appear in the directory.
    pub(crate) fn note_name(&self, name: &[u8]) {
        if let Some(listing) = self.listing.get() {
            listing.lock().note(name);
        }
    }

    pub(crate) fn is_created(&self) -> bool {
        self.has(CREATED)
    }

    pub(crate) fn has_times(&self) -> bool {
        self.has(CREATED | TIMES | ATTRIBUTES)
    }

    pub(crate) fn has_attributes(&self) -> bool {
        self.has(CREATED | ATTRIBUTES)
    }

    pub(crate) fn covers(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Attributes => self.has_attributes(),
            Wanted::Content(span) => self.covers_span(span),
        }
    }

    fn covers_span(&self, span: Span) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & (CREATED | WHOLE) != 0 {
            return true;
        }
        flags & LENGTH != 0 && self.missing(span).next().is_none()
    }

    /// The length the file had before the step, if that is known.
    pub(crate) fn former_length(&self) -> Option<u64> {
        self.has(LENGTH).then(|| self.length.load(Ordering::Acquire))
    }

    /// Stretches of former content within `span`, in whole blocks, that are not captured yet.
    pub(crate) fn missing(&self, span: Span) -> impl Iterator<Item = Span> + '_ {
        let length = self.length.load(Ordering::Acquire);
        let (end, size) = (span.end.min(length), block_size(length));
        let last = end.div_ceil(size);
        let mut block = if span.start < end { span.start / size } else { last };
        std::iter::from_fn(move || {
            let gap = match self.blocks.get() {
                Some(blocks) => blocks.gap(block, last)?,
                None => (block < last).then_some(block..last)?,
            };
            block = gap.end;
            let end = gap.end.saturating_mul(size).min(length);
            Some(Span { start: gap.start * size, end })
        })
    }

    /// `span`, or more: whoever goes on where the last stretch ended will probably go on further.
    /// Twice as much as last time, so that most of it is needed.
    pub(crate) fn with_sequel(&self, span: Span) -> Span {
        let size = block_size(self.length.load(Ordering::Acquire));
        let (start, end) =
            (self.last_start.load(Ordering::Relaxed), self.last_end.load(Ordering::Relaxed));
        if end == 0 || span.start / size * size != end {
            return span;
        }
        let more = (2 * (end - start)).min(MOST_AT_ONCE);
        Span { start: span.start, end: span.end.max(end.saturating_add(more)) }
    }

    pub(crate) fn set_times(&self) {
        self.add(TIMES);
    }

    pub(crate) fn set_attributes(&self) {
        self.add(ATTRIBUTES);
    }

    /// From now on the former length is known; call before [`InodeState::set_span`].
    pub(crate) fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Release);
        self.add(LENGTH);
    }

    pub(crate) fn set_span(&self, span: Span) {
        let length = self.length.load(Ordering::Acquire);
        let blocks = self.blocks.get_or_init(|| Blocks::of(length));
        let size = block_size(length);
        blocks.set(span.start / size..span.end.min(length).div_ceil(size));
        self.last_start.store(span.start, Ordering::Relaxed);
        self.last_end.store(span.end, Ordering::Relaxed);
    }

    pub(crate) fn set_whole(&self) {
        self.add(WHOLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a large file.
    const BLOCK: u64 = 4 << 10;

    #[test]
    fn blocks_are_missing_until_they_are_captured() {
        let state = InodeState::default();
        state.set_length(100 * BLOCK + 5);
        let all = Span { start: 0, end: u64::MAX };
        assert_eq!(
            state.missing(all).collect::<Vec<_>>(),
            [Span { start: 0, end: 100 * BLOCK + 5 }]
        );
        state.set_span(Span { start: BLOCK, end: 2 * BLOCK });
        let missing: Vec<_> = state.missing(all).collect();
        assert_eq!(missing[0], Span { start: 0, end: BLOCK });
        assert_eq!(missing[1], Span { start: 2 * BLOCK, end: 100 * BLOCK + 5 });
        assert!(state.covers(Wanted::Content(Span { start: BLOCK + 7, end: BLOCK + 9 })));
        assert!(!state.covers(Wanted::Content(Span { start: BLOCK - 1, end: BLOCK + 9 })));
    }

    #[test]
    fn whoever_goes_on_gets_twice_as_much_captured_each_time() {
        let state = InodeState::default();
        state.set_length(1000 * BLOCK);
        let write = |block: u64| Span::of(block * BLOCK, BLOCK);
        let wanted = |block: u64| state.with_sequel(write(block));
        assert_eq!(wanted(0), write(0));
        state.set_span(write(0));
        assert_eq!(wanted(1), Span::of(BLOCK, 2 * BLOCK));
        assert_eq!(wanted(2), write(2));
        state.set_span(Span::of(BLOCK, 2 * BLOCK));
        assert_eq!(wanted(3), Span::of(3 * BLOCK, 4 * BLOCK));
        state.set_span(Span::of(0, 100 * BLOCK));
        assert_eq!(wanted(100), Span::of(100 * BLOCK, MOST_AT_ONCE));
        assert_eq!(state.with_sequel(Span::from(100 * BLOCK)), Span::from(100 * BLOCK));
        assert_eq!(wanted(99), write(99));
    }

    #[test]
    fn bytes_behind_the_former_end_need_no_capture() {
        let state = InodeState::default();
        state.set_length(100);
        assert!(state.covers(Wanted::Content(Span { start: 100, end: 4096 })));
        assert!(!state.covers(Wanted::Content(Span { start: 99, end: 4096 })));
    }
}
