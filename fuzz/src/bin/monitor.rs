//! The words of monitor commands, in the stub (which serves whoever the debugger is) and in the bridge.
#![no_main]

use ulpf_stub_host_tests::words;

ulpf_fuzz::target!(|data| {
    let text = String::from_utf8_lossy(data);
    let mut rest = text.split_ascii_whitespace();
    while let Some(word) = rest.next() {
        let _ = words::number(Some(word));
        if let Some(place) = words::place(word) {
            assert!(place.count <= 1 << 20);
        }
        let _ = words::bytecode(word);
        if let Ok(ranges) = words::ranges(Some(word)) {
            assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0));
        }
        if matches!(word, "old" | "new") {
            let mut code = words::comparison(1, &mut rest);
            if let (Ok(code), Some(mask)) = (&mut code, words::number(rest.next())) {
                assert_eq!(words::masked(code, mask), Ok(()));
                assert!(ulpf_lib::agent::variables(code, |_| {}));
            }
        }
    }
    let mut filter = ulpf_bridge::Filter::default();
    let mut rest = text.split_ascii_whitespace();
    while let Some(word) = rest.next() {
        let _ = filter.take(word, &mut rest);
    }
    let _ = ulpf_bridge::filter::number(Some(&text));
});
