//! Numbers without a pattern, the same in every run.

#[derive(Debug)]
pub(crate) struct Noise(u64);

impl Default for Noise {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Noise {
    pub(crate) fn next_number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Noise, so that compression does not flatter what is stored.
pub(crate) fn incompressible(length: usize) -> Vec<u8> {
    let mut noise = Noise::default();
    (0..length.div_ceil(8)).flat_map(|_| noise.next_number().to_le_bytes()).take(length).collect()
}
