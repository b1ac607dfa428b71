/** Form fields made from the schema of a request body. */

import {
  ActionIcon,
  Autocomplete,
  Button,
  JsonInput,
  MultiSelect,
  NumberInput,
  PasswordInput,
  Select,
  Switch,
  TagsInput,
  Textarea,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconX } from '@tabler/icons-react';
import { useMemo, useState, type ReactNode } from 'react';
import type { Fields } from '../api/objects';
import {
  choicesOf,
  problemsOf,
  resolved,
  typesOf,
  type Problem,
  type Schema,
  type SchemaScope,
} from '../api/json-schema';

export interface Field {
  name: string;
  label: string;
  /** Instead of the description in the schema. */
  help?: ReactNode;
  /** How to enter the value, where the schema does not tell. */
  control?:
    'textarea' | 'mono' | 'secret' | 'time' | 'json' | 'pairs' | 'list' | 'select' | 'number' | 'switch' | 'text';
  /** Values to choose from, or to suggest. */
  options?: (string | { value: string; label: string })[];
  /** Whether other values than the options can be entered. */
  isOpen?: boolean;
  placeholder?: string;
  isShown?: (values: Fields) => boolean;
  /** What a field without a value means, where the schema does not tell. */
  initially?: unknown;
  /** Instead of the usual input. */
  render?: (input: FieldInput) => ReactNode;
}

export interface FieldInput {
  value: unknown;
  onChange: (value: unknown) => void;
  problem: string | undefined;
  label: string;
  isDisabled: boolean;
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
  return (
    <div className="form-fields">
      {fields
        .filter((field) => field.isShown?.(form.values) ?? true)
        .map((field) => (
          <FormField
            key={`${field.name} ${field.label}`}
            field={field}
            scope={scope}
            value={form.values[field.name]}
            onChange={(value) => form.set(field.name, value)}
            problem={
              form.problemOf(field.name) ??
              (rejected && rejected.field.split(/[.[]/)[0] === field.name ? rejected.message : undefined)
            }
            isDisabled={isDisabled}
          />
        ))}
    </div>
  );
}

interface FormFieldProps {
  field: Field;
  scope: SchemaScope;
  value: unknown;
  onChange: (value: unknown) => void;
  problem: string | undefined;
  isDisabled: boolean;
}

function FormField({ field, scope, value, onChange, problem, isDisabled }: FormFieldProps) {
  const schema = resolved(scope.root.properties?.[field.name] ?? {}, scope);
  const isRequired = scope.root.required?.includes(field.name) ?? false;
  const { label, placeholder } = field;
  if (field.render) return <>{field.render({ value, onChange, problem, label, isDisabled })}</>;
  const common = {
    label,
    description: field.help ?? schema.description,
    error: problem,
    disabled: isDisabled,
    withAsterisk: isRequired,
    placeholder,
  };
  const choices = field.options ?? choicesOf(schema, scope);
  const optional = (next: string) => (next === '' && !isRequired ? emptyValue(schema) : next);
  switch (field.control ?? controlOf(schema, scope)) {
    case 'switch':
      return (
        <Switch
          label={label}
          description={common.description}
          error={problem}
          disabled={isDisabled}
          checked={Boolean(value ?? schema.default ?? field.initially ?? false)}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
      );
    case 'number':
      return (
        <NumberInput
          {...common}
          placeholder={placeholder ?? (schema.default == null ? undefined : String(schema.default))}
          allowDecimal={typesOf(schema).includes('number')}
          value={typeof value === 'number' ? value : ''}
          onChange={(next) => onChange(typeof next === 'number' ? next : emptyValue(schema))}
        />
      );
    case 'list': {
      const list = value == null ? [] : Array.isArray(value) ? value.map(String) : [String(value)];
      const numeric = typesOf(resolved(itemOf(schema), scope)).includes('integer');
      const data = choices ?? [];
      const change = (next: string[]) =>
        onChange(next.length === 0 && !isRequired ? emptyValue(schema) : numeric ? next.map(Number) : next);
      return choices && !field.isOpen ? (
        <MultiSelect {...common} data={data} value={list} onChange={change} clearable searchable />
      ) : (
        <TagsInput {...common} data={data} value={list} onChange={change} clearable acceptValueOnBlur />
      );
    }
    case 'pairs':
      return <Pairs {...common} value={value} onChange={onChange} isDisabled={isDisabled} />;
    case 'json':
      return <Json {...common} value={value} onChange={onChange} empty={emptyValue(schema)} />;
    case 'time':
      return (
        <TextInput
          {...common}
          type="datetime-local"
          value={typeof value === 'number' ? localTime(value) : ''}
          onChange={(event) => {
            const ms = new Date(event.currentTarget.value).getTime();
            onChange(Number.isNaN(ms) ? emptyValue(schema) : ms);
          }}
        />
      );
    case 'secret':
      return (
        <PasswordInput
          {...common}
          autoComplete="new-password"
          value={typeof value === 'string' ? value : ''}
          onChange={(event) => onChange(optional(event.currentTarget.value))}
        />
      );
    case 'textarea':
      return (
        <Textarea
          {...common}
          autosize
          minRows={2}
          maxRows={10}
          value={typeof value === 'string' ? value : ''}
          onChange={(event) => onChange(optional(event.currentTarget.value))}
        />
      );
    default:
      if (choices && field.isOpen) {
        return (
          <Autocomplete
            {...common}
            data={choices}
            value={value == null ? '' : String(value)}
            onChange={(next) => onChange(optional(next))}
          />
        );
      }
      if (choices) {
        const initial = schema.default ?? field.initially;
        const fallback = initial == null ? null : String(initial);
        const isBoolean = typesOf(schema).includes('boolean');
        return (
          <Select
            {...common}
            data={choices}
            searchable={choices.length > 8}
            allowDeselect={!isRequired && fallback === null}
            clearable={!isRequired && fallback === null}
            value={value == null ? fallback : String(value)}
            onChange={(next) => onChange(next === null ? emptyValue(schema) : isBoolean ? next === 'true' : next)}
          />
        );
      }
      return (
        <TextInput
          {...common}
          classNames={field.control === 'mono' ? { input: 'mono' } : undefined}
          spellCheck={field.control === 'mono' ? false : undefined}
          value={typeof value === 'string' ? value : ''}
          onChange={(event) => onChange(optional(event.currentTarget.value))}
        />
      );
  }
}

/** The value of an empty field: `null` where the schema knows it, otherwise the field is left out. */
function emptyValue(schema: Schema): unknown {
  const types = [...typesOf(schema), ...(schema.anyOf ?? schema.oneOf ?? []).flatMap(typesOf)];
  return types.includes('null') ? null : undefined;
}

const itemOf = (schema: Schema): Schema =>
  schema.items ?? (schema.anyOf ?? schema.oneOf ?? []).find((part) => typesOf(part).includes('array'))?.items ?? {};

function controlOf(schema: Schema, scope: SchemaScope): string {
  const parts = [schema, ...(schema.anyOf ?? schema.oneOf ?? []).map((part) => resolved(part, scope))];
  const types = parts.flatMap(typesOf);
  if (types.includes('array')) {
    const item = resolved(itemOf(schema), scope);
    const isPlain = typesOf(item).some((type) => type === 'string' || type === 'integer') || choicesOf(item, scope);
    return isPlain ? 'list' : 'json';
  }
  if (types.includes('object')) return typeof schema.additionalProperties === 'object' ? 'pairs' : 'json';
  if (types.includes('boolean')) return 'switch';
  if (types.includes('integer') || types.includes('number')) return 'number';
  if (types.length === 0 && choicesOf(schema, scope) === undefined) return 'json';
  return schema.writeOnly ? 'secret' : 'text';
}

/** The value of a field for date and time, in the zone of the browser. */
function localTime(ms: number): string {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 16);
}

interface CommonProps {
  label: string;
  description?: ReactNode;
  error?: string | undefined;
  disabled: boolean;
}

/** Any JSON, as text; the form gets the value while the text is valid. */
function Json({
  value,
  onChange,
  empty,
  ...common
}: CommonProps & { value: unknown; onChange: (value: unknown) => void; empty: unknown }) {
  const { t } = useLingui();
  const [text, setText] = useState(value == null ? '' : JSON.stringify(value, null, 2));
  const [isWrong, setWrong] = useState(false);
  return (
    <JsonInput
      {...common}
      error={isWrong ? t`This is not valid JSON` : common.error}
      autosize
      minRows={3}
      maxRows={20}
      classNames={{ input: 'mono' }}
      value={text}
      onChange={(next) => {
        setText(next);
        if (next.trim() === '') {
          setWrong(false);
          onChange(empty);
          return;
        }
        try {
          onChange(JSON.parse(next));
          setWrong(false);
        } catch {
          setWrong(true);
          // Text instead of the value: the schema refuses it, so that nothing outdated is sent.
          onChange(next);
        }
      }}
    />
  );
}

/** Names and texts. */
function Pairs({
  label,
  description,
  error,
  value,
  onChange,
  isDisabled,
}: CommonProps & { value: unknown; onChange: (value: unknown) => void; isDisabled: boolean }) {
  const { t } = useLingui();
  const [rows, setRows] = useState<[string, string][]>(
    Object.entries((value ?? {}) as Record<string, unknown>).map(([name, each]) => [name, String(each)]),
  );
  const change = (next: [string, string][]) => {
    setRows(next);
    onChange(Object.fromEntries(next.filter(([name]) => name !== '')));
  };
  return (
    <fieldset className="pairs">
      <legend>{label}</legend>
      {description && <div className="field-help">{description}</div>}
      {rows.map(([name, text], index) => (
        <div className="row" key={index}>
          <TextInput
            className="grow"
            aria-label={t`Name`}
            value={name}
            disabled={isDisabled}
            onChange={(event) =>
              change(rows.map((row, at) => (at === index ? [event.currentTarget.value, row[1]] : row)))
            }
          />
          <TextInput
            className="grow"
            aria-label={t`Value`}
            value={text}
            disabled={isDisabled}
            onChange={(event) =>
              change(rows.map((row, at) => (at === index ? [row[0], event.currentTarget.value] : row)))
            }
          />
          <ActionIcon
            aria-label={t`Remove`}
            disabled={isDisabled}
            onClick={() => change(rows.filter((_, at) => at !== index))}
          >
            <IconX size={14} />
          </ActionIcon>
        </div>
      ))}
      {error && (
        <div className="state-critical" role="alert">
          {error}
        </div>
      )}
      {!isDisabled && (
        <Button
          variant="subtle"
          size="compact-xs"
          leftSection={<IconPlus size={12} />}
          onClick={() => setRows([...rows, ['', '']])}
        >
          <Trans>Add</Trans>
        </Button>
      )}
    </fieldset>
  );
}
