/** Forms of configuration objects: their state, and the fields that a page has chosen. */

import { useMemo, useState } from 'react';
import { problemsOf, type Problem, type SchemaScope } from '../api/json-schema';
import type { Fields } from '../api/objects';
import { SchemaField, type FieldOptions, type FormContext } from './schema-form';

export interface Field extends FieldOptions {
  name: string;
  label: string;
  isShown?: (values: Fields) => boolean;
}

/** The state of a form: values, what is wrong with them, and which of it to show. */
export function useForm(scope: SchemaScope | undefined, pseudoFields: string[] | undefined, initial: Fields) {
  const [values, setValues] = useState<Fields>(initial);
  const [touched, setTouched] = useState<ReadonlySet<string>>(new Set());
  const [isSubmitted, setSubmitted] = useState(false);
  const problems = useMemo(() => {
    if (!scope) return [];
    return problemsOf(values, scope.root, scope).filter(({ path }) => !pseudoFields?.includes(path));
  }, [scope, pseudoFields, values]);
  return {
    values,
    problems,
    isSubmitted,
    isChanged: touched.size > 0,
    set(name: string, value: unknown) {
      setValues((previous) => {
        const { [name]: _, ...rest } = previous;
        return value === undefined ? rest : { ...rest, [name]: value };
      });
      setTouched((previous) => new Set([...previous, name]));
    },
    setAll(next: Fields) {
      setValues(next);
      setTouched(new Set([...Object.keys(values), ...Object.keys(next)]));
    },
    /** The problem of a field that was changed, or of any field after an attempt to save. */
    problemOf(name: string): string | undefined {
      if (!isSubmitted && !touched.has(name)) return undefined;
      const found = problems.find(({ path }) => path === name || path.startsWith(`${name}.`));
      return found && describe(found, name);
    },
    /** Problems of other fields than these, after an attempt to save. */
    hiddenProblems(names: string[]): Problem[] {
      return isSubmitted ? problems.filter(({ path }) => !names.includes(path.split('.')[0] ?? '')) : [];
    },
    /** Whether the form may be sent; from now on all problems are shown. */
    submit(): boolean {
      setSubmitted(true);
      return problems.length === 0;
    },
  };
}

export type Form = ReturnType<typeof useForm>;

function describe({ path, message }: Problem, name: string): string {
  const inner = path.slice(name.length + 1);
  return inner === '' || /^\d+$/.test(inner) ? message : `${inner}: ${message}`;
}

interface FormFieldsProps {
  form: Form;
  scope: SchemaScope;
  fields: Field[];
  /** What the node said about a field. */
  rejected?: { field: string; message: string };
  isDisabled?: boolean;
}

export function FormFields({ form, scope, fields, rejected, isDisabled = false }: FormFieldsProps) {
  const context: FormContext = {
    scope,
    problems: new Map(form.problems.map(({ path, message }) => [path, message])),
    showAll: form.isSubmitted,
    isDisabled,
    controls: {},
  };
  return (
    <div className="form-fields">
      {fields
        .filter((field) => field.isShown?.(form.values) ?? true)
        .map((field) => (
          <SchemaField
            key={`${field.name} ${field.label}`}
            name={field.name}
            schema={scope.root.properties?.[field.name] ?? {}}
            value={form.values[field.name]}
            onChange={(value) => form.set(field.name, value)}
            path={field.name}
            isRequired={scope.root.required?.includes(field.name) ?? false}
            context={context}
            options={field}
            error={
              form.problemOf(field.name) ??
              (rejected && rejected.field.split(/[.[]/)[0] === field.name ? rejected.message : undefined)
            }
          />
        ))}
    </div>
  );
}
