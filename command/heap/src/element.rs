//! Finds the container's element that a byte belongs to, if the functions that have allocated the block identify it:
//! `[24] of std::vector<int>`.
//!
//! The functions between the container's function and `operator new` belong to the allocator, whose name contains the
//! type of the elements. Any other function between them may have allocated an object of its own, so no element is
//! named.

use serde::Serialize;
use ulpf_symbols::Program;

/// An element of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Element {
    /// `std::vector<int>`
    pub container: String,
    /// May be negative or too large, for a byte before or after the block.
    pub index: i64,
}

/// The elements of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Elements<'a> {
    container: String,
    of: &'a str,
}

const ALLOCATORS: [&str; 4] = [
    "std::__new_allocator<",
    "__gnu_cxx::new_allocator<",
    "std::allocator_traits<",
    "std::allocator<",
];
const VECTORS: [&str; 2] = ["std::vector<", "std::_Vector_base<"];
const STRING: &str = "std::__cxx11::basic_string<";
const ARRAY: &str = "std::make_unique<";

impl Element {
    /// The element of the byte at `addr`, in or near a block of `size` bytes at `start`. `allocated_by`: names of
    /// functions, innermost first.
    pub fn at<'a>(
        addr: u64,
        (start, size): (u64, u64),
        allocated_by: impl Iterator<Item = &'a str>,
        program: &Program,
    ) -> Option<Element> {
        let elements = elements(allocated_by)?;
        let each = known(elements.of).or_else(|| program.size_of(elements.of))?;
        // (A string has one character more, which ends it.)
        if each == 0 || !size.is_multiple_of(each) {
            return None;
        }
        let from = addr.wrapping_sub(start).cast_signed();
        Some(Element {
            container: elements.container,
            index: from.div_euclid(each.cast_signed()),
        })
    }
}

fn elements<'a>(allocated_by: impl Iterator<Item = &'a str>) -> Option<Elements<'a>> {
    let mut of = None;
    for name in allocated_by {
        let path = path(name);
        if path.starts_with("operator new") {
            continue;
        }
        if ALLOCATORS.iter().any(|a| path.starts_with(a)) {
            // (The innermost allocator surely has the type of the elements.)
            of = of.or(argument(path));
            continue;
        }
        if let (true, Some(of)) = (VECTORS.iter().any(|v| path.starts_with(v)), of) {
            return (argument(path) == Some(of)).then(|| Elements {
                container: format!("std::vector<{}>", written(of)),
                of,
            });
        }
        if path.starts_with(STRING) {
            let of = argument(path)?;
            let container = match of {
                "char" => "std::string".into(),
                of => format!("std::basic_string<{of}>"),
            };
            return Some(Elements { container, of });
        }
        if path.starts_with(ARRAY) && of.is_none() {
            let of = argument(path)?.strip_suffix("[]")?.trim_end();
            return Some(Elements {
                container: format!("{}[]", written(of)),
                of,
            });
        }
        return None;
    }
    None
}

/// Positions outside of all brackets where `is_it` holds.
fn outside(text: &str, mut is_it: impl FnMut(char) -> bool) -> impl Iterator<Item = usize> {
    let mut depth = 0;
    text.char_indices().filter_map(move |(at, c)| {
        let found = depth == 0 && is_it(c);
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        found.then_some(at)
    })
}

/// A function's name without its return type and arguments.
fn path(name: &str) -> &str {
    let end = outside(name, |c| c == '(').next().unwrap_or(name.len());
    let name = &name[..end];
    if name.starts_with("operator new") {
        return name;
    }
    let start = outside(name, |c| c == ' ').last().map_or(0, |at| at + 1);
    &name[start..]
}

/// The first argument of the first template of a path.
fn argument(path: &str) -> Option<&str> {
    let (_, arguments) = path.split_once('<')?;
    let end = outside(arguments, |c| c == ',' || c == '>').next()?;
    Some(arguments[..end].trim())
}

/// A type as programmers write it.
fn written(of: &str) -> &str {
    match of.starts_with(STRING) && argument(of) == Some("char") && of.ends_with('>') {
        true => "std::string",
        false => of,
    }
}

/// Sizes that are the same in all programs.
fn known(of: &str) -> Option<u64> {
    const SIZES: [(&str, u64); 24] = [
        ("bool", 1),
        ("char", 1),
        ("signed char", 1),
        ("unsigned char", 1),
        ("char8_t", 1),
        ("std::byte", 1),
        ("short", 2),
        ("unsigned short", 2),
        ("char16_t", 2),
        ("char32_t", 4),
        ("wchar_t", 4),
        ("int", 4),
        ("unsigned int", 4),
        ("long", 8),
        ("unsigned long", 8),
        ("long long", 8),
        ("unsigned long long", 8),
        ("__int128", 16),
        ("unsigned __int128", 16),
        ("float", 4),
        ("double", 8),
        ("long double", 16),
        ("std::complex<float>", 8),
        ("std::complex<double>", 16),
    ];
    const BEGIN: [(&str, u64); 3] = [
        (STRING, 32),
        ("std::shared_ptr<", 16),
        ("std::weak_ptr<", 16),
    ];
    if of.ends_with('*') {
        return Some(8);
    }
    let begins = BEGIN
        .iter()
        .find(|(name, _)| of.starts_with(name) && of.ends_with('>'));
    if let Some((_, bytes)) = begins {
        return Some(*bytes);
    }
    SIZES.iter().find(|(name, _)| *name == of).map(|(_, n)| *n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Option<(String, String)> {
        elements(names.iter().copied()).map(|e| (e.container, e.of.into()))
    }

    fn some(container: &str, of: &str) -> Option<(String, String)> {
        Some((container.into(), of.into()))
    }

    const NEW: &str = "operator new(unsigned long)";

    #[test]
    fn the_allocator_and_the_container_agree() {
        let allocate = "std::__new_allocator<int>::allocate(unsigned long, void const*)";
        let traits = "std::allocator_traits<std::allocator<int> >::allocate(std::allocator<int>&, unsigned long)";
        let base = "std::_Vector_base<int, std::allocator<int> >::_M_allocate(unsigned long)";
        let main = "main";
        let vector = some("std::vector<int>", "int");
        assert_eq!(of(&[NEW, allocate, traits, base, main]), vector);
        assert_eq!(of(&[NEW, allocate, base]), vector);
        let insert = "void std::vector<Point, std::allocator<Point> >::_M_realloc_insert<Point>(__gnu_cxx::__normal_iterator<Point*, std::vector<Point, std::allocator<Point> > >, Point&&)";
        let points = "std::__new_allocator<Point>::allocate(unsigned long, void const*)";
        assert_eq!(
            of(&[NEW, points, insert]),
            some("std::vector<Point>", "Point")
        );
        // Another object that the vector's function has allocated for an element.
        assert_eq!(of(&[NEW, insert]), None);
        assert_eq!(of(&[NEW, allocate, insert]), None);
        assert_eq!(of(&[NEW, "make_points()", insert]), None);
        // A node.
        let node =
            "std::__new_allocator<std::_List_node<int> >::allocate(unsigned long, void const*)";
        assert_eq!(
            of(&[NEW, node, "std::_List_base<int>::_M_get_node()"]),
            None
        );
        assert_eq!(of(&[NEW, allocate, "fill(std::vector<int>&)"]), None);
    }

    #[test]
    fn strings_and_arrays() {
        let construct = "void std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_construct<char const*>(char const*, char const*)";
        assert_eq!(of(&[NEW, construct]), some("std::string", "char"));
        let array = "std::_MakeUniq<int []>::__array std::make_unique<int []>(unsigned long)";
        assert_eq!(
            of(&["operator new[](unsigned long)", array]),
            some("int[]", "int")
        );
        let one = "std::_MakeUniq<int>::__single_object std::make_unique<int>()";
        assert_eq!(of(&[NEW, one]), None);
        assert_eq!(of(&["malloc", "main"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn names_that_nobody_expects() {
        for name in [
            "",
            "<",
            ">",
            "std::vector<",
            "std::vector<(",
            "a b",
            "((",
            "std::make_unique<[]>",
        ] {
            of(&[name, name]);
            of(&[NEW, "std::allocator<int>::allocate", name]);
        }
        assert_eq!(path("(anonymous namespace)::f(int)"), "");
    }
}
