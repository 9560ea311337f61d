//! Changed inputs of a corpus, from a seed: the same ones in every run.

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A length of 1 to `most`; short ones are likelier.
    fn len(&mut self, most: usize) -> usize {
        let bound = 1 << self.below(most.max(1).ilog2() as usize + 1);
        1 + self.below(bound.min(most))
    }
}

pub struct Changes<'a> {
    corpus: &'a [Vec<u8>],
    words: &'a [Vec<u8>],
    random: Random,
    /// Bytes that an input may have.
    longest: usize,
}

impl<'a> Changes<'a> {
    /// # Panics
    /// `corpus` is empty.
    pub fn new(seed: u64, corpus: &'a [Vec<u8>], words: &'a [Vec<u8>]) -> Changes<'a> {
        let longest = corpus.iter().map(Vec::len).max().expect("an input");
        Changes {
            corpus,
            words,
            random: Random(seed),
            longest: (2 * longest).max(4096),
        }
    }

    /// Replaces `input` by a changed input of the corpus.
    pub fn next(&mut self, input: &mut Vec<u8>) {
        let Changes { corpus, random, .. } = self;
        input.clear();
        // Now and then bytes that have nothing to do with the corpus.
        match random.below(32) {
            0 => {
                let len = random.len(256);
                input.extend((0..len).map(|_| random.next() as u8));
            }
            _ => input.extend_from_slice(&corpus[random.below(corpus.len())]),
        }
        for _ in 0..random.len(16) {
            self.change(input);
        }
        input.truncate(self.longest);
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let Changes {
            corpus,
            words,
            random,
            ..
        } = self;
        let at = random.below(input.len());
        let rest = input.len() - at;
        let piece = at..at + random.len(rest).min(rest);
        match random.below(12) {
            0 => set(
                input,
                at,
                |byte, random| *byte ^= 1 << random.below(8),
                random,
            ),
            1 => set(
                input,
                at,
                |byte, random| *byte = random.next() as u8,
                random,
            ),
            // A neighbour: the next digit, the operation of the next number.
            2 => set(
                input,
                at,
                |byte, random| *byte = byte.wrapping_add(random.below(9) as u8).wrapping_sub(4),
                random,
            ),
            3 => {
                let len = random.len(16);
                let new: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                input.splice(at..at, new);
            }
            4 => drop(input.drain(piece)),
            // A piece again, somewhere else: over what is there or before it.
            5 | 6 => {
                let copy = input[piece].to_vec();
                let to = random.below(input.len() + 1);
                put(input, to, &copy, random);
            }
            // The rest of another input.
            7 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            // A piece of another input.
            8 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len());
                let len = random.len(other.len() - from).min(other.len() - from);
                put(input, at, &other[from..from + len], random);
            }
            // An edge of numbers, as bytes or as digits.
            9 => {
                let edge = EDGES[random.below(EDGES.len())];
                let number = edge.wrapping_add(random.below(3) as u64).wrapping_sub(1);
                match random.below(4) {
                    0 => put(input, at, format!("{number:x}").as_bytes(), random),
                    1 => put(input, at, format!("{number}").as_bytes(), random),
                    _ => {
                        let len = 1 << random.below(4);
                        put(input, at, &number.to_le_bytes()[..len], random);
                    }
                }
            }
            10 if !words.is_empty() => put(input, at, &words[random.below(words.len())], random),
            // One byte many times: deep nesting, long numbers.
            _ => {
                let byte = input.get(at).copied().unwrap_or(b'(');
                let many = vec![byte; random.len(1024)];
                input.splice(at..at, many);
            }
        }
    }
}

const EDGES: [u64; 8] = [
    0,
    1 << 7,
    1 << 8,
    1 << 15,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 63,
];

fn set(
    input: &mut [u8],
    at: usize,
    change: impl FnOnce(&mut u8, &mut Random),
    random: &mut Random,
) {
    if let Some(byte) = input.get_mut(at) {
        change(byte, random);
    }
}

/// Inserts a piece, or writes it over what is there.
fn put(input: &mut Vec<u8>, at: usize, piece: &[u8], random: &mut Random) {
    let over = match random.below(2) {
        0 => 0,
        _ => piece.len().min(input.len() - at),
    };
    input.splice(at..at + over, piece.iter().copied());
}
