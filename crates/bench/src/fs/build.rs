//! `cargo build` of a small crate.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Bench;
use super::programs::require;
use super::side::Side;
use super::times::{Times, WRITES, rounds};
use crate::shadow_git::run;
use crate::table::Row;

const MODULES: usize = 20;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    require("cargo")?;
    let mut sides = Side::prepare(bench, 512 << 20, |work| {
        (0..bench.repetitions).try_for_each(|round| make_crate(&work.join(round.to_string())))
    })?;
    let mut build = Times::default();
    rounds(&mut sides, bench.repetitions, |side, round| {
        let time = side.step(|dir| cargo_build(&dir.join(round.to_string())))?;
        build.push(side.kind(), time);
        Ok(())
    })?;
    Ok(build.rows("cargo build of 20 modules", WRITES).into())
}

fn cargo_build(dir: &Path) -> Result<()> {
    run(Command::new("cargo")
        .args(["build", "--offline", "--quiet"])
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(dir))
}

pub(crate) fn make_crate(root: &Path) -> Result<()> {
    let manifest =
        "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
    fs::create_dir_all(root.join("src"))?;
    fs::write(root.join("Cargo.toml"), manifest)?;
    let mut main = String::new();
    for module in 0..MODULES {
        writeln!(main, "mod module_{module};")?;
        fs::write(root.join(format!("src/module_{module}.rs")), module_text(module)?)?;
    }
    writeln!(main, "\nfn main() {{")?;
    for module in 0..MODULES {
        writeln!(
            main,
            "    println!(\"{{:?}}\", module_{module}::Item_0::new({module}).double());"
        )?;
    }
    writeln!(main, "}}")?;
    fs::write(root.join("src/main.rs"), main)?;
    Ok(())
}

fn module_text(module: usize) -> Result<String> {
    let mut text = String::from("#![allow(dead_code, non_camel_case_types)]\n");
    for item in 0..20 {
        writeln!(text, "\n#[derive(Debug, Clone, PartialEq)]\npub struct Item_{item} {{")?;
        writeln!(text, "    name: String,\n    values: Vec<usize>,\n}}\n")?;
        writeln!(text, "impl Item_{item} {{\n    pub fn new(count: usize) -> Self {{")?;
        writeln!(
            text,
            "        let values = (0..count).map(|n| n * {module} + {item}).collect();"
        )?;
        writeln!(text, "        Self {{ name: format!(\"item {{count}}\"), values }}\n    }}\n")?;
        writeln!(text, "    pub fn double(&self) -> Self {{")?;
        writeln!(
            text,
            "        let values = self.values.iter().map(|value| value * 2).collect();"
        )?;
        writeln!(text, "        Self {{ name: self.name.clone(), values }}\n    }}\n}}")?;
    }
    Ok(text)
}
