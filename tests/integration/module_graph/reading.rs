//! The modules of a crate and what each of its files uses of the others, as `syn` parses them.
//! Code for tests is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Item, UseTree, visit::Visit};

/// The files that each file uses, with one of the names.
pub(crate) type Graph = BTreeMap<PathBuf, BTreeMap<PathBuf, String>>;

/// The meaning of a name in a module.
enum Name {
    Module(usize),
    Item,
    Import(Vec<String>),
}

/// The result of resolving a path.
enum Target {
    Module(usize),
    /// An item, by the file that defines it.
    Item(PathBuf),
}

struct Module {
    file: PathBuf,
    /// Its path, from `crate` on.
    path: Vec<String>,
    parent: Option<usize>,
    names: BTreeMap<String, Vec<Name>>,
    globs: Vec<Vec<String>>,
    /// The paths in its code.
    uses: BTreeSet<Vec<String>>,
}

#[derive(Default)]
struct Crate {
    modules: Vec<Module>,
    /// The files that define macros, which need no path.
    macros: BTreeMap<String, PathBuf>,
}

/// The graph of the crate whose root module is `root`.
pub(crate) fn graph(root: &Path) -> Graph {
    let krate = Crate::read(root);
    let mut graph = Graph::new();
    for (at, module) in krate.modules.iter().enumerate() {
        let edges = graph.entry(module.file.clone()).or_default();
        for path in &module.uses {
            for file in krate.files(at, path) {
                if file != module.file {
                    edges.entry(file).or_insert_with(|| path.join("::"));
                }
            }
        }
    }
    graph
}

/// The paths that each file of the crate uses, imports or re-exports. Those with `crate`, `self` or
/// `super` begin with `crate`.
pub(crate) fn paths(root: &Path) -> BTreeMap<PathBuf, BTreeSet<Vec<String>>> {
    let krate = Crate::read(root);
    let mut paths = BTreeMap::<_, BTreeSet<_>>::new();
    for (at, module) in krate.modules.iter().enumerate() {
        let imports = module.names.values().flatten().filter_map(|name| match name {
            Name::Import(path) => Some(path),
            Name::Module(_) | Name::Item => None,
        });
        let all = module.uses.iter().chain(&module.globs).chain(imports);
        let all = all.map(|path| krate.absolute_path(at, path));
        paths.entry(module.file.clone()).or_default().extend(all);
    }
    paths
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut krate = Self::default();
        krate.load(root, root.parent().unwrap(), None, vec!["crate".to_owned()]);
        krate
    }

    /// A path in the module, from `crate` on if it has such a prefix.
    fn absolute_path(&self, at: usize, path: &[String]) -> Vec<String> {
        let prefix = path.iter().take_while(|name| matches!(name.as_str(), "self" | "super"));
        let (prefix, rest) = path.split_at(prefix.count());
        if prefix.is_empty() {
            return rest.to_vec();
        }
        let above = prefix.iter().filter(|name| *name == "super").count();
        let module = &self.modules[at].path;
        [&module[..module.len() - above], rest].concat()
    }

    /// Reads a file, whose child modules lie in `directory`.
    fn load(
        &mut self,
        file: &Path,
        directory: &Path,
        parent: Option<usize>,
        path: Vec<String>,
    ) -> usize {
        let text = std::fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.module(file, directory, parent, path, &parsed.items)
    }

    fn module(
        &mut self,
        file: &Path,
        directory: &Path,
        parent: Option<usize>,
        path: Vec<String>,
        items: &[Item],
    ) -> usize {
        let at = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            path,
            parent,
            names: BTreeMap::new(),
            globs: Vec::new(),
            uses: BTreeSet::new(),
        });
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            if let Item::Mod(item) = item {
                let child = self.child(file, directory, at, item);
                self.bind(at, item.ident.to_string(), Name::Module(child));
                continue;
            }
            if let Item::Macro(syn::ItemMacro { ident: Some(name), .. }) = item {
                self.macros.insert(format!("{name}!"), file.to_owned());
            }
            if let Some(name) = defined(item) {
                self.bind(at, name, Name::Item);
            }
            Uses { krate: self, module: at }.visit_item(item);
        }
        at
    }

    fn child(&mut self, file: &Path, directory: &Path, at: usize, child: &syn::ItemMod) -> usize {
        let name = child.ident.to_string();
        let inside = directory.join(&name);
        let path = [&self.modules[at].path, &[name.clone()][..]].concat();
        match &child.content {
            Some((_, items)) => self.module(file, &inside, Some(at), path, items),
            None => {
                let beside = directory.join(format!("{name}.rs"));
                let file = if beside.exists() { beside } else { inside.join("mod.rs") };
                self.load(&file, &inside, Some(at), path)
            }
        }
    }

    fn bind(&mut self, at: usize, name: String, meaning: Name) {
        self.modules[at].names.entry(name).or_default().push(meaning);
    }

    /// The files of the items that a path in the module names.
    fn files(&self, at: usize, path: &[String]) -> BTreeSet<PathBuf> {
        let targets = self.resolve(at, path, &mut BTreeSet::new());
        let items = targets.into_iter().filter_map(|target| match target {
            Target::Item(file) => Some(file),
            Target::Module(_) => None,
        });
        items.chain(self.macros.get(&path.join("::")).cloned()).collect()
    }

    /// `seen` has the names that are being resolved.
    fn resolve(
        &self,
        at: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return vec![Target::Module(at)] };
        let parent = || self.modules[at].parent;
        match first.as_str() {
            "self" => self.resolve(at, rest, seen),
            "crate" => self.resolve(0, rest, seen),
            "super" => parent().map_or_else(Vec::new, |parent| self.resolve(parent, rest, seen)),
            _ => {
                let found = self.lookup(at, first, seen);
                let modules = found.iter().filter_map(|target| match target {
                    Target::Module(module) => Some(*module),
                    Target::Item(_) => None,
                });
                let modules: Vec<_> = modules.collect();
                // A function may have the name of a module, and nothing is inside it.
                if rest.is_empty() || modules.is_empty() {
                    return found;
                }
                modules.into_iter().flat_map(|module| self.resolve(module, rest, seen)).collect()
            }
        }
    }

    fn lookup(&self, at: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Vec<Target> {
        if !seen.insert((at, name.to_owned())) {
            return Vec::new();
        }
        let module = &self.modules[at];
        let mut targets = Vec::new();
        for meaning in module.names.get(name).into_iter().flatten() {
            match meaning {
                Name::Module(child) => targets.push(Target::Module(*child)),
                Name::Item => targets.push(Target::Item(module.file.clone())),
                Name::Import(path) => targets.extend(self.resolve(at, path, seen)),
            }
        }
        if targets.is_empty() {
            for glob in &module.globs {
                for target in self.resolve(at, glob, seen) {
                    if let Target::Module(module) = target {
                        targets.extend(self.lookup(module, name, seen));
                    }
                }
            }
        }
        seen.remove(&(at, name.to_owned()));
        targets
    }
}

/// Collects what an item uses, and what it brings into scope.
struct Uses<'a> {
    krate: &'a mut Crate,
    module: usize,
}

impl Uses<'_> {
    fn uses(&mut self, path: Vec<String>) {
        self.krate.modules[self.module].uses.insert(path);
    }

    fn imports(&mut self, tree: &UseTree, mut path: Vec<String>, is_private: bool) {
        let (name, alias) = match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                return self.imports(&inner.tree, path, is_private);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.imports(tree, path.clone(), is_private);
                }
                return;
            }
            UseTree::Glob(_) => return self.krate.modules[self.module].globs.push(path),
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        let mut alias = alias.to_string();
        if name == "self" {
            if alias == "self" {
                alias = path.last().unwrap().clone();
            }
        } else {
            path.push(name.to_string());
        }
        if is_private {
            self.uses(path.clone());
        }
        self.krate.bind(self.module, alias, Name::Import(path));
    }

    /// The paths in the tokens of a macro or an attribute. A name after a `.` is a method
    /// or a field.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let (mut is_separated, mut is_member) = (false, false);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if !is_separated {
                        self.path(std::mem::take(&mut path));
                    }
                    if !is_member {
                        path.push(ident.to_string());
                    }
                    (is_separated, is_member) = (false, false);
                }
                TokenTree::Punct(punct) => {
                    is_separated = punct.as_char() == ':';
                    is_member = punct.as_char() == '.';
                }
                TokenTree::Group(group) => {
                    self.path(std::mem::take(&mut path));
                    self.tokens(group.stream());
                    (is_separated, is_member) = (false, false);
                }
                TokenTree::Literal(_) => is_member = false,
            }
        }
        self.path(path);
    }

    fn path(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.uses(path);
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_private = matches!(item.vis, syn::Visibility::Inherited);
        self.imports(&item.tree, Vec::new(), is_private);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.uses(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        if let Some(name) = call.path.get_ident() {
            self.uses(vec![format!("{name}!")]);
        }
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    // The path in `pub(in …)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// The name that an item defines.
fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// True if it exists in tests only: `#[cfg(test)]`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}
