//! How paths are written and read.

use super::*;
use alloc::string::ToString;

#[test]
fn as_it_is_written() {
    for word in [
        "0x4040>16",
        "0x4040>8>-4",
        "0x0>0>0",
        "0x4040@list,8,4",
        "0x4040@list,0,16,-8",
        "0x4040>16@nodes,8,4>24",
        "0x4040@span,8,24,0,-1,0",
        "0x4040@count,8,8,4,2,5,0@most,1000000",
        "0x4040@times,8,8,0>16",
        "0x4040@if,16,1,0>8",
        "0x0@threads,-4",
        "0x1149@frames,-20",
        "0x1149@frames,-24@list,8,4",
        "0x4040@counted,0,8,16",
        "0x4040@tree,16,24,32,36",
        "0x4040@btree,8,142,144,11,8,8",
        "0x4040>0@table,8,16,8",
        "0x4040@slots,24,8,16,8",
        "0x4040@ring,-8,8,16,4,0,-1,0",
        "0x4040@chunks,32,-16,4,0,-1,0",
        "0x4040@short,-16,-8,-15,1,0,-1,0",
        "0x4040@is,0,8,-9223372036854775808,1,8",
        "0x4040@not,0,1,2,1,0>8",
    ] {
        let path = Path::parse(word).unwrap().unwrap();
        assert_eq!(path.to_string(), word);
    }
    for word in [
        "0x4040",
        "0x4040>",
        ">8",
        "0x4040>x",
        "0x4040>8>",
        "0x4040>--8",
        "0x4040@list,8",
        "0x4040@list,8,4,4,4",
        "0x4040@tree,8,4",
        "0x4040@most,1>8",
        "0x4040@",
    ] {
        assert_eq!(Path::parse(word), None, "{word}");
    }
    let long = |n: usize| Path::parse(&("0x4040".to_string() + &">0".repeat(n))).unwrap();
    assert!(long(MOST_POINTERS).is_ok() && long(MOST_POINTERS + 1).is_err());
    for senseless in [
        "0x4040@span,8,0,0,-1,0",
        "0x4040@count,8,9,4,0,-1,0",
        "0x4040@times,8,8,0",
        "0x4040@times,-1,8,0>8",
        "0x4040@if,8,0,0",
        "0x4040@is,8,9,0,1,0",
        "0x4040@btree,8,142,144,65,8,8",
        "0x4040@table,8,0,8",
        "0x4040@tree,16,24,32,36@list,8,0",
        "0x4040@list,8,0@list,8,0",
        "0x4040>8@frames,-20",
        "0x4040@most,5",
    ] {
        assert!(Path::parse(senseless).unwrap().is_err(), "{senseless}");
    }
    let most = |word: &str| Path::parse(word).unwrap().unwrap().most();
    assert_eq!(most("0x4040@list,8,4@most,0"), 1);
    assert_eq!(most("0x4040@list,8,4@most,0xffffffffffff"), MOST_OF_ALL);
    assert_eq!(most("0x4040@list,8,4"), MOST_FOLLOWED);
}
