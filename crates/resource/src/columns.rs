//! Table columns (meta.k8s.io/v1 `TableColumnDefinition`).
//!
//! Invariant: columns of built-in kinds are constants; those of custom resources come from their definitions.

/// One column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// `READY`'s name as upstream spells it: `Ready`.
    pub name: std::borrow::Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: std::borrow::Cow<'static, str>,
    /// `name` for the name column, else mostly empty.
    pub format: std::borrow::Cow<'static, str>,
    /// What it shows.
    pub description: std::borrow::Cow<'static, str>,
    /// 0 is always shown, above that only by `-o wide`.
    pub priority: i32,
}

impl Column {
    /// A column of a built-in kind. `description` is upstream's where a client shows it, else short.
    pub const fn new(name: &'static str, ty: &'static str, priority: i32, description: &'static str) -> Self {
        use std::borrow::Cow::Borrowed;
        Column {
            name: Borrowed(name),
            ty: Borrowed(ty),
            format: Borrowed(""),
            description: Borrowed(description),
            priority,
        }
    }

    /// A column of texts that is always shown.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Column::new(name, "string", 0, description)
    }

    /// The same column, only shown by `-o wide`.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

/// The `Name` column every table begins with.
pub const fn name_column() -> Column {
    use std::borrow::Cow::Borrowed;
    Column {
        name: Borrowed("Name"),
        ty: Borrowed("string"),
        format: Borrowed("name"),
        description: Borrowed(
            "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
        ),
        priority: 0,
    }
}

/// The `Age` column of most tables.
pub const fn age_column() -> Column {
    Column::new(
        "Age",
        "string",
        0,
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_columns_have_priority_one() {
        const AGE: Column = age_column().wide();
        assert_eq!((AGE.priority, age_column().priority), (1, 0));
        assert_eq!((&*AGE.name, &*AGE.ty, &*AGE.format), ("Age", "string", ""));
        assert_eq!((&*name_column().name, &*name_column().format), ("Name", "name"));
    }
}
