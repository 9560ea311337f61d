//! Well-known programs, and their work in the benchmarks.

use super::super::SOON;
use super::super::children::finish;
use super::super::machine::find;
use super::heap::{PYTHON, SQL};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kind of program, which decides its bars.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Compiled,
    /// It generates code.
    Generates,
    /// Its stacks are on the heap.
    Go,
}

pub struct Program {
    pub name: &'static str,
    pub program: &'static str,
    pub package: &'static str,
    pub kind: Kind,
    /// Amount of work in the longer run of `real`.
    pub work: u32,
    /// Arguments; `WORK` is replaced by the amount.
    arguments: &'static [&'static str],
}

const fn program(
    name: &'static str,
    program: &'static str,
    package: &'static str,
    kind: Kind,
    work: u32,
    arguments: &'static [&'static str],
) -> Program {
    Program {
        name,
        program,
        package,
        kind,
        work,
        arguments,
    }
}

const PERL: &str = "my %h; for my $i (1..WORK) { push @{$h{$i * 7919 % 1000}}, [$i, \"row $i\"]; $s += length join ',', map { $_->[1] } \
@{$h{$i % 1000}}[0..2] if $h{$i % 1000} && @{$h{$i % 1000}} > 2; } print scalar(keys %h), \" $s\\n\";";
const RUBY: &str = "h = Hash.new { |k, v| k[v] = [] }; s = 0; WORK.times { |i| a = h[(i * 7919 % 1000).to_s]; a << [i, \"row #{i}\"]; \
s += a.last[1].size }; puts h.size, s";
const PHP: &str = "$h = []; $s = 0; for ($i = 0; $i < WORK; $i++) { $h[(string)($i * 7919 % 1000)][] = [$i, \"row $i\"]; \
$s += strlen(\"row $i\"); } echo count($h), ' ', $s, \"\\n\";";
const AWK: &str = "BEGIN { for (i = 0; i < WORK; i++) { k = \"k\" (i * 7919 % 1000); h[k] = substr(h[k] \"row \" i, 1, 60); n += length(h[k]) } \
for (k in h) m++; print m, n }";
const LUA: &str = "local h, s = {}, 0; for i = 1, WORK do local k = 'k' .. (i * 7919 % 1000); h[k] = h[k] or {}; \
h[k][#h[k] + 1] = { i, 'row ' .. i }; s = s + #h[k][#h[k]][2] end; print(s)";
const JS: &str = "const h = new Map(); let s = 0; for (let i = 0; i < WORK; i++) { const k = 'k' + (i * 7919 % 1000); \
if (!h.has(k)) h.set(k, []); const a = h.get(k); a.push({ i, t: 'row ' + i }); if (a.length > 50) a.length = 0; s += ('row ' + i).length; } \
console.log(h.size, s);";
const SCHEME: &str = "(define h (make-hash-table)) (let loop ((i 0) (s 0)) (if (< i WORK) (let ((k (modulo (* i 7919) 1000))) \
(hashv-set! h k (list i (hashv-ref h k 0))) (hashv-set! h k (vector i k)) (loop (+ i 1) (+ s (vector-ref (hashv-ref h k) 1)))) \
(begin (display s) (newline))))";
const FFMPEG: &[&str] = &[
    "-nostdin",
    "-v",
    "error",
    "-filter_threads",
    "1",
    "-f",
    "lavfi",
    "-i",
    "testsrc=size=320x240:rate=25",
    "-frames:v",
    "WORK",
    "-pix_fmt",
    "yuv420p",
    "-c:v",
    "libx264",
    "-preset",
    "veryfast",
    "-threads",
    "1",
    "-f",
    "md5",
    "-",
];
const JAVA: &str = "import java.util.*;
public class Work { public static void main(String[] a) { int n = Integer.parseInt(a[0]); long s = 0;
  Map<String, List<int[]>> h = new HashMap<>();
  for (int i = 0; i < n; i++) { List<int[]> l = h.computeIfAbsent(\"k\" + (i * 7919L % 1000), k -> new ArrayList<>());
    l.add(new int[] {i, i + 1}); if (l.size() > 50) l.clear(); else s += l.get(l.size() - 1)[1]; }
  System.out.println(h.size() + \" \" + s); } }
";
const GO: &str = "package main
import (\"fmt\"; \"os\"; \"strconv\"; \"sync\")
func main() { n, _ := strconv.Atoi(os.Args[1]); var w sync.WaitGroup; sums := make([]int, 4)
  for g := 0; g < 4; g++ { w.Add(1); go func(g int) { defer w.Done(); h := map[string][]int{}
    for i := 0; i < n / 4; i++ { k := \"k\" + strconv.Itoa(i * 7919 % 1000); h[k] = append(h[k], i)
      if len(h[k]) > 50 { h[k] = nil }; sums[g] += len(h[k]) } }(g) }
  w.Wait(); fmt.Println(sums) }
";

/// The one that serves others: its work is so many requests of each sort.
pub const SERVER: &str = "redis";

pub const PROGRAMS: &[Program] = &[
    program(
        "sqlite3",
        "sqlite3",
        "sqlite3",
        Kind::Compiled,
        150_000,
        &[":memory:", SQL],
    ),
    program(
        SERVER,
        "redis-benchmark",
        "redis-tools",
        Kind::Compiled,
        40_000,
        &[],
    ),
    program(
        "CPython",
        "/usr/bin/python3",
        "python3",
        Kind::Compiled,
        400_000,
        &["-S", "-E", "-c", PYTHON],
    ),
    program(
        "perl",
        "perl",
        "perl",
        Kind::Compiled,
        400_000,
        &["-e", PERL],
    ),
    program(
        "ruby",
        "ruby",
        "ruby",
        Kind::Compiled,
        600_000,
        &["--disable-gems", "-e", RUBY],
    ),
    program(
        "php",
        "php",
        "php-cli",
        Kind::Compiled,
        2_000_000,
        &["-n", "-d", "memory_limit=-1", "-r", PHP],
    ),
    program("gawk", "gawk", "gawk", Kind::Compiled, 1_000_000, &[AWK]),
    program(
        "lua",
        "lua5.4",
        "lua5.4",
        Kind::Compiled,
        600_000,
        &["-e", LUA],
    ),
    program(
        "git log",
        "git",
        "git",
        Kind::Compiled,
        2_000,
        &["-C", "FOLDER/history", "log", "-p", "-n", "WORK"],
    ),
    program(
        "xz",
        "xz",
        "xz-utils",
        Kind::Compiled,
        800,
        &["-c", "-T1", "FOLDER/text.WORK"],
    ),
    program(
        "zstd",
        "zstd",
        "zstd",
        Kind::Compiled,
        8_000,
        &["-q", "-c", "-9", "--single-thread", "FOLDER/text.WORK"],
    ),
    program("ffmpeg", "ffmpeg", "ffmpeg", Kind::Compiled, 300, FFMPEG),
    program(
        "cc1",
        "cc",
        "gcc",
        Kind::Compiled,
        800,
        &["-quiet", "-O1", "FOLDER/functions.WORK.c", "-o", "-"],
    ),
    program(
        "node",
        "node",
        "nodejs",
        Kind::Generates,
        6_000_000,
        &["-e", JS],
    ),
    program(
        "java",
        "java",
        "default-jdk-headless",
        Kind::Generates,
        12_000_000,
        &["-cp", "FOLDER", "Work", "WORK"],
    ),
    program(
        "luajit",
        "luajit",
        "luajit",
        Kind::Generates,
        1_500_000,
        &["-e", LUA],
    ),
    program(
        "guile",
        "guile",
        "guile-3.0",
        Kind::Generates,
        8_000_000,
        &["--no-auto-compile", "-c", SCHEME],
    ),
    program(
        "go, four goroutines",
        "go",
        "golang-go",
        Kind::Go,
        12_000_000,
        &["WORK"],
    ),
];

impl Program {
    /// Creates the input files. Returns the program to run and its arguments.
    pub fn prepare(&self, folder: &Path, work: u32) -> Result<(PathBuf, Vec<String>)> {
        let work = work.max(1);
        let mut file = find(self.program).unwrap_or_default();
        match self.name {
            "git log" => history(folder)?,
            "xz" | "zstd" => text(&folder.join(format!("text.{work}")), work)?,
            "cc1" => {
                functions(&folder.join(format!("functions.{work}.c")), work)?;
                let output = finish(Command::new(&file).arg("-print-prog-name=cc1"), SOON)?;
                file = PathBuf::from(output.1.trim());
                ensure!(file.is_absolute(), "{} is not GCC", self.program);
            }
            "java" => {
                let javac = find("javac")
                    .context("there is no javac (apt install default-jdk-headless)")?;
                fs::write(folder.join("Work.java"), JAVA)?;
                build(Command::new(javac).arg("Work.java"), folder)?;
            }
            _ if self.kind == Kind::Go => {
                fs::write(folder.join("work.go"), GO)?;
                let home = folder.join("go");
                let mut command = Command::new(&file);
                command
                    .env("GOCACHE", &home)
                    .env("GOFLAGS", "-mod=mod")
                    .env("GO111MODULE", "off");
                build(
                    command.args(["build", "-o", "work-in-go", "work.go"]),
                    folder,
                )?;
                file = folder.join("work-in-go");
            }
            _ => {}
        }
        let (work, folder) = (work.to_string(), folder.display().to_string());
        let fill = |text: &&str| {
            text.replace("WORK", &work)
                .replace("ROWS", &work)
                .replace("FOLDER", &folder)
        };
        // (The class of Java's is called so.)
        let arguments = self.arguments.iter().map(|text| match *text {
            "Work" => "Work".into(),
            _ => fill(text),
        });
        Ok((file, arguments.collect()))
    }
}

fn build(command: &mut Command, folder: &Path) -> Result<()> {
    let (status, said) = finish(command.current_dir(folder), SOON)?;
    ensure!(status.success(), "its program cannot be built: {said}");
    Ok(())
}

/// A repository with two thousand commits, each of which changes some lines of one of forty files.
fn history(folder: &Path) -> Result<()> {
    let (repository, stream) = (folder.join("history"), folder.join("history.stream"));
    if repository.exists() {
        return Ok(());
    }
    let mut all = String::new();
    for n in 0..2000u32 {
        let file = n % 40;
        let lines: String = (0..60)
            .map(|line| {
                format!(
                    "line {line} of file {file}: {}\n",
                    (n / 40 + line) / 7 * 7919 % 1000
                )
            })
            .collect();
        let _ = write!(
            all,
            "commit refs/heads/main\ncommitter A <a@b> {} +0000\ndata 8\nChange {}\nM 100644 inline file{file}\ndata {}\n{lines}\n",
            1_700_000_000 + n,
            n % 10,
            lines.len()
        );
    }
    fs::write(&stream, all)?;
    let git = find("git").unwrap_or_default();
    build(Command::new(&git).args(["init", "-q", "history"]), folder)?;
    let sh = "git -C history fast-import --quiet < history.stream && git -C history symbolic-ref HEAD refs/heads/main";
    build(Command::new("sh").args(["-c", sh]), folder)
}

/// Writes a file of `kib` KiB of text.
fn text(path: &Path, kib: u32) -> Result<()> {
    let mut out = String::new();
    let mut n = 1u32;
    while out.len() < kib as usize * 1024 {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let _ = writeln!(out, "row {} of {}: {}", n >> 20, n >> 28, n >> 12 & 63);
    }
    Ok(fs::write(path, out)?)
}

/// Writes a file of `count` functions in C.
fn functions(path: &Path, count: u32) -> Result<()> {
    let mut out = String::new();
    for n in 0..count {
        let _ = writeln!(
            out,
            "struct s{n} {{ int a, b[{}]; struct s{n} *next; }};\nint f{n}(struct s{n} *p, int k) {{ int s = 0; for (int i = 0; i < k; i++) \
             {{ if (p->b[i % {}] > k) s += p->a * i; else {{ p = p->next; s ^= i; }} switch (s % 5) {{ case 0: s++; break; case 3: s *= 7; }} }} \
             return s; }}",
            n % 7 + 1,
            n % 7 + 1
        );
    }
    Ok(fs::write(path, out)?)
}
