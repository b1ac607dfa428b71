/** Forms with all fields that a schema describes, also nested ones, lists and unions; checked while the user types. */

import {
  ActionIcon,
  Button,
  Checkbox,
  Fieldset,
  JsonInput,
  NumberInput,
  PasswordInput,
  Select,
  Stack,
  TagsInput,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';
import { problemsOf, resolved, type Schema, type SchemaScope } from '../api/json-schema';
import { choiceList, fieldLabel, isVariant, plain, variantName, variantStart } from '../api/schema-variants';
import './generated-form.css';

export type FormValue = Record<string, unknown>;

/** A control for a field that the schema describes only as text, such as the name of another object. */
export type Control = (props: {
  label: string;
  description?: ReactNode;
  value: unknown;
  onChange: (value: unknown) => void;
  error?: string;
  required: boolean;
}) => ReactNode;

/** Texts by path. */
type Problems = ReadonlyMap<string, string>;

interface FormContext {
  scope: SchemaScope;
  problems: Problems;
  /** Whether untouched fields show their problems too. */
  showAll: boolean;
  controls: Record<string, Control>;
}

interface GeneratedFormProps {
  schema: Schema;
  /** Where references of the schema point to; default: it has none. */
  scope?: SchemaScope;
  value: FormValue;
  onChange: (value: FormValue) => void;
  /** Fields that the form does not show. */
  hidden?: readonly string[];
  /** Fields that come first, in this order. */
  first?: readonly string[];
  /** After an attempt to save. */
  showAll?: boolean;
  controls?: Record<string, Control>;
}

/** Text fields of these names have several lines. */
const multiLine = /^(sql|body|payload|document|line|text|message|query|select|condition|template|command)$/;

export function GeneratedForm({
  schema,
  scope = { schemas: {}, root: schema },
  value,
  onChange,
  hidden = [],
  first = [],
  showAll = false,
  controls = {},
}: GeneratedFormProps) {
  const problems = new Map(formProblems(value, schema, scope).map((each) => [each.path, each.message]));
  const context = { scope, problems, showAll, controls };
  return <Fields {...{ schema, value, onChange, hidden, first, context }} path="" />;
}

/** What is wrong with the values of a form, in which an empty text stands for a missing one. */
export function formProblems(value: FormValue, schema: Schema, scope: SchemaScope = { schemas: {}, root: schema }) {
  return problemsOf(withoutEmpty(value), schema, scope);
}

function withoutEmpty(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutEmpty);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).filter(([, inner]) => inner !== undefined && inner !== '');
  return Object.fromEntries(entries.map(([name, inner]) => [name, withoutEmpty(inner)]));
}

interface FieldsProps {
  schema: Schema;
  value: FormValue;
  onChange: (value: FormValue) => void;
  path: string;
  hidden?: readonly string[];
  first?: readonly string[];
  context: FormContext;
}

/** The fields of an object: required ones first, groups of settings last. */
function Fields({ schema, value, onChange, path, hidden = [], first = [], context }: FieldsProps) {
  const own = plain(schema, context.scope);
  const required = new Set(own.required ?? []);
  const properties = own.properties ?? {};
  const names = Object.keys(properties).filter(
    (name) => !hidden.includes(name) && properties[name]?.const === undefined,
  );
  const rank = (name: string) => {
    if (first.includes(name)) return first.indexOf(name) - first.length;
    if (required.has(name)) return 0;
    return plain(properties[name] ?? {}, context.scope).type === 'object' ? 2 : 1;
  };
  return (
    <Stack gap="sm">
      {[...names]
        .sort((a, b) => rank(a) - rank(b))
        .map((name) => (
          <Field
            key={name}
            name={name}
            schema={properties[name] ?? {}}
            value={value[name]}
            onChange={(next) => {
              const { [name]: _, ...others } = value;
              onChange(next === undefined ? others : { ...others, [name]: next });
            }}
            path={path === '' ? name : `${path}.${name}`}
            isRequired={required.has(name)}
            context={context}
          />
        ))}
    </Stack>
  );
}

function isGroup(schema: Schema): boolean {
  return schema.type === 'object' && schema.properties !== undefined;
}

interface FieldProps {
  name: string;
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  path: string;
  isRequired: boolean;
  context: FormContext;
}

function Field({ name, schema, value, onChange, path, isRequired, context }: FieldProps) {
  const { t } = useLingui();
  const own = plain(schema, context.scope);
  const label = fieldLabel(name);
  const description = own.description && withCode(own.description);
  const problem = context.problems.get(path);
  const isEmpty = value === undefined || value === null || value === '';
  const error = problem !== undefined && (context.showAll || !isEmpty) ? problem : undefined;
  const hint = own.default === undefined || own.default === null ? undefined : shownDefault(own.default);
  const common = { label, description, error, required: isRequired };
  const control = context.controls[path];
  if (control) return control({ ...common, value, onChange });

  const options = choiceList(own);
  if (options) {
    return (
      <Select
        {...common}
        data={options.map((option) => option.value)}
        value={typeof value === 'string' ? value : null}
        placeholder={hint ?? t`default`}
        clearable={!isRequired}
        onChange={(next) => onChange(next ?? undefined)}
        renderOption={({ option }) => (
          <div>
            {option.label}
            <Text size="xs" c="dimmed">
              {options.find((each) => each.value === option.value)?.description}
            </Text>
          </div>
        )}
      />
    );
  }
  if (own.oneOf) return <Union {...{ name, value, onChange, path, isRequired, context }} schema={own} />;
  if (own.type === 'boolean') {
    return (
      <Checkbox
        label={label}
        description={description}
        checked={typeof value === 'boolean' ? value : own.default === true}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
    );
  }
  if (own.type === 'integer' || own.type === 'number') {
    return (
      <NumberInput
        {...common}
        value={typeof value === 'number' ? value : ''}
        placeholder={hint}
        allowDecimal={own.type === 'number'}
        onChange={(next) => onChange(next === '' || next === '-' ? undefined : Number(next))}
      />
    );
  }
  if (own.type === 'string') {
    const text = typeof value === 'string' ? value : '';
    if (own.writeOnly) {
      return (
        <PasswordInput
          {...common}
          value={text}
          autoComplete="new-password"
          onChange={(event) => onChange(event.currentTarget.value || undefined)}
        />
      );
    }
    if (multiLine.test(name)) {
      return (
        <Textarea
          {...common}
          classNames={{ input: 'mono' }}
          autosize
          minRows={2}
          maxRows={14}
          value={text}
          placeholder={hint}
          onChange={(event) => onChange(event.currentTarget.value || undefined)}
        />
      );
    }
    return (
      <TextInput
        {...common}
        value={text}
        placeholder={hint}
        onChange={(event) => onChange(event.currentTarget.value || undefined)}
      />
    );
  }
  if (own.type === 'array' && own.items) {
    const items = plain(own.items, context.scope);
    if (items.type === 'string' && !choiceList(items)) {
      return (
        <TagsInput
          {...common}
          value={Array.isArray(value) ? value.map(String) : []}
          placeholder={t`Type, then press Enter`}
          splitChars={[]}
          acceptValueOnBlur
          onChange={(next) => onChange(next.length > 0 ? next : undefined)}
        />
      );
    }
    return <List {...{ name, value, onChange, path, isRequired, context }} schema={{ ...own, items }} />;
  }
  if (isGroup(own)) {
    return <SettingsGroup {...{ name, value, onChange, path, isRequired, context }} schema={own} />;
  }
  if (own.type === 'object' && typeof own.additionalProperties === 'object') {
    return <TextMap {...{ name, value, onChange, path, isRequired, context }} schema={own} />;
  }
  return (
    <JsonField
      label={label}
      description={description}
      error={error}
      required={isRequired}
      value={value}
      onChange={onChange}
    />
  );
}

/** A description, with names of the API as code. */
function withCode(text: string): ReactNode {
  const parts = text.replaceAll('\n', ' ').split('`');
  return parts.map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

function shownDefault(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Settings that exist only together; without a value the defaults apply. */
function SettingsGroup({ name, schema, value, onChange, path, isRequired, context }: FieldProps) {
  const isSet = typeof value === 'object' && value !== null;
  const fields = (
    <Fields
      schema={schema}
      value={isSet ? (value as FormValue) : {}}
      onChange={onChange}
      path={path}
      context={context}
    />
  );
  if (isRequired) return <Fieldset legend={fieldLabel(name)}>{fields}</Fieldset>;
  return (
    <div className="settings-group">
      <Checkbox
        label={fieldLabel(name)}
        description={schema.description && withCode(schema.description)}
        checked={isSet}
        onChange={(event) => onChange(event.currentTarget.checked ? {} : undefined)}
      />
      {isSet && <div className="settings-group-fields">{fields}</div>}
    </div>
  );
}

/** One of several forms, chosen by its name. */
function Union({ name, schema, value, onChange, path, isRequired, context }: FieldProps) {
  const { t } = useLingui();
  const variants = (schema.oneOf ?? []).map((each) => resolved(each, context.scope));
  const current = variants.find((variant) => isVariant(variant, value));
  return (
    <div>
      <Select
        label={fieldLabel(name)}
        description={schema.description && withCode(schema.description)}
        required={isRequired}
        error={context.showAll ? context.problems.get(path) : undefined}
        placeholder={t`default`}
        clearable={!isRequired}
        data={variants.map(variantName)}
        value={current ? variantName(current) : null}
        onChange={(next) => {
          const variant = variants.find((each) => variantName(each) === next);
          onChange(variant ? variantStart(variant) : undefined);
        }}
      />
      {current?.properties && (
        <div className="settings-group-fields">
          {current.description && (
            <Text size="xs" c="dimmed" mb="xs">
              {current.description}
            </Text>
          )}
          <Fields schema={current} value={value as FormValue} onChange={onChange} path={path} context={context} />
        </div>
      )}
    </div>
  );
}

/** A list of objects. */
function List({ name, schema, value, onChange, path, context }: FieldProps) {
  const { t } = useLingui();
  const entries = Array.isArray(value) ? value : [];
  const items = schema.items ?? {};
  const problem = context.showAll ? context.problems.get(path) : undefined;
  return (
    <Fieldset legend={fieldLabel(name)}>
      <Stack gap="sm">
        {schema.description && (
          <Text size="xs" c="dimmed">
            {withCode(schema.description)}
          </Text>
        )}
        {entries.map((entry, index) => (
          <div key={index} className="list-entry">
            <div className="grow">
              <Field
                name={items.properties ? '' : String(index + 1)}
                schema={items}
                value={entry}
                onChange={(next) => onChange(entries.map((each, at) => (at === index ? (next ?? {}) : each)))}
                path={`${path}.${index}`}
                isRequired
                context={context}
              />
            </div>
            <ActionIcon
              aria-label={t`Remove entry ${index + 1}`}
              onClick={() => {
                const rest = entries.filter((_, at) => at !== index);
                onChange(rest.length > 0 ? rest : undefined);
              }}
            >
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        {problem && (
          <Text size="xs" c="var(--tg-critical)">
            {problem}
          </Text>
        )}
        <div>
          <Button variant="default" leftSection={<IconPlus size={14} />} onClick={() => onChange([...entries, {}])}>
            <Trans>Add</Trans>
          </Button>
        </div>
      </Stack>
    </Fieldset>
  );
}

/** Texts by name. */
function TextMap({ name, schema, value, onChange, path, isRequired, context }: FieldProps) {
  const { t } = useLingui();
  const stored = typeof value === 'object' && value !== null ? Object.entries(value as FormValue) : [];
  // A name that is being typed may be empty or occur twice, which an object cannot represent.
  const [rows, setRows] = useState<[string, string][]>(stored.map(([key, text]) => [key, String(text)]));
  const change = (next: [string, string][]) => {
    setRows(next);
    const named = next.filter(([key]) => key !== '');
    onChange(named.length > 0 ? Object.fromEntries(named) : undefined);
  };
  const problem = context.showAll ? context.problems.get(path) : undefined;
  return (
    <Fieldset legend={`${fieldLabel(name)}${isRequired ? ' *' : ''}`}>
      <Stack gap="xs">
        {schema.description && (
          <Text size="xs" c="dimmed">
            {withCode(schema.description)}
          </Text>
        )}
        {rows.map(([key, text], index) => (
          <div key={index} className="row">
            <TextInput
              aria-label={t`Name`}
              placeholder={t`Name`}
              value={key}
              onChange={(event) => change(replaced(rows, index, [event.currentTarget.value, text]))}
            />
            <TextInput
              className="grow"
              aria-label={t`Value`}
              placeholder={t`Value`}
              value={text}
              onChange={(event) => change(replaced(rows, index, [key, event.currentTarget.value]))}
            />
            <ActionIcon aria-label={t`Remove ${key}`} onClick={() => change(rows.filter((_, at) => at !== index))}>
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        {problem && (
          <Text size="xs" c="var(--tg-critical)">
            {problem}
          </Text>
        )}
        <div>
          <Button variant="default" leftSection={<IconPlus size={14} />} onClick={() => setRows([...rows, ['', '']])}>
            <Trans>Add</Trans>
          </Button>
        </div>
      </Stack>
    </Fieldset>
  );
}

function replaced<T>(list: T[], index: number, entry: T): T[] {
  return list.map((each, at) => (at === index ? entry : each));
}

/** A value of any form, as JSON. */
function JsonField({
  value,
  onChange,
  ...common
}: {
  label: string;
  description?: ReactNode;
  error?: string;
  required: boolean;
  value: unknown;
  onChange: (value: unknown) => void;
}) {
  const { t } = useLingui();
  const [text, setText] = useState(
    value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value),
  );
  return (
    <JsonInput
      {...common}
      classNames={{ input: 'mono' }}
      autosize
      minRows={1}
      value={text}
      validationError={t`Not valid JSON`}
      onChange={(next) => {
        setText(next);
        if (next.trim() === '') onChange(undefined);
        else {
          try {
            onChange(JSON.parse(next));
          } catch {
            // A word without quotes is a text.
            onChange(next);
          }
        }
      }}
    />
  );
}
