//! The table for people and the line for programs.

use anyhow::Result;

use super::row::Row;

/// Prints the table, and the JSON as the last line if it was asked for.
pub(crate) fn print(rows: &[Row], json: bool) -> Result<()> {
    println!("{}", table(rows));
    if json {
        println!("{}", serde_json::json!({ "rows": rows }));
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let head = [
        "", "measured", "value", "unit", "floor", "must", "reach", "",
    ]
    .map(str::to_owned);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    let line = |cells: &[String; 8]| {
        let mut line = format!("{:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line.trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn cells(row: &Row) -> [String; 8] {
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let verdict = match (row.must, row.holds()) {
        (None, _) => "",
        (Some(_), true) => "ok",
        (Some(_), false) => "BELOW",
    };
    [
        row.name.clone(),
        row.absolute.clone(),
        format!("{:.2}", row.value),
        row.unit.to_owned(),
        optional(row.floor),
        optional(row.must),
        optional(row.reach),
        verdict.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_the_json_has_the_agreed_fields() {
        let row = Row {
            name: "get 1MiB x8".to_owned(),
            value: 0.75,
            unit: "of raw socket",
            floor: Some(5.0),
            must: Some(0.6),
            reach: None,
            higher: true,
            absolute: "3.75 GB/s".to_owned(),
        };
        let table = table(std::slice::from_ref(&row));
        assert!(
            table.contains("get 1MiB x8  3.75 GB/s   0.75  of raw socket   5.00  0.60"),
            "{table}"
        );
        let json = serde_json::to_value(&row).expect("a row serializes");
        let mut fields: Vec<_> = json.as_object().expect("an object").keys().collect();
        fields.sort();
        assert_eq!(
            fields,
            ["floor", "higher", "must", "name", "reach", "unit", "value"]
        );
        assert!(json["reach"].is_null());
    }
}
