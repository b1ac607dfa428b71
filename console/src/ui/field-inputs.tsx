/** Inputs of forms for values that are no single line of text: JSON, names with texts, times. */

import { ActionIcon, Button, Fieldset, JsonInput, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';

export interface InputProps {
  label: string;
  description?: ReactNode;
  error?: string;
  required: boolean;
  disabled: boolean;
  value: unknown;
  onChange: (value: unknown) => void;
}

/** Any JSON, as text; the form gets the value while the text is valid. */
export function JsonField({
  value,
  onChange,
  empty,
  isWordText,
  ...common
}: InputProps & {
  /** The value of an empty field. */
  empty: unknown;
  /** Whether a word without quotes is a text instead of a mistake. */
  isWordText: boolean;
}) {
  const { t } = useLingui();
  const [text, setText] = useState(
    value == null ? '' : typeof value === 'string' && isWordText ? value : JSON.stringify(value, null, 2),
  );
  const [isWrong, setWrong] = useState(false);
  return (
    <JsonInput
      {...common}
      error={isWrong ? t`This is not valid JSON` : common.error}
      autosize
      minRows={isWordText ? 1 : 3}
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
          setWrong(!isWordText);
          // Text instead of the value: the schema rejects it, so that nothing outdated is sent.
          onChange(next);
        }
      }}
    />
  );
}

/** Texts by name. */
export function TextMap({
  label,
  description,
  error,
  required,
  disabled,
  value,
  onChange,
  empty,
}: InputProps & {
  /** The value without names. */
  empty: unknown;
}) {
  const { t } = useLingui();
  // A name that is being typed may be empty or occur twice, which an object cannot represent.
  const [rows, setRows] = useState<[string, string][]>(
    Object.entries((value ?? {}) as Record<string, unknown>).map(([name, each]) => [name, String(each)]),
  );
  const change = (next: [string, string][]) => {
    setRows(next);
    const named = next.filter(([name]) => name !== '');
    onChange(named.length > 0 ? Object.fromEntries(named) : empty);
  };
  const set = (index: number, row: [string, string]) => change(rows.map((each, at) => (at === index ? row : each)));
  return (
    <Fieldset legend={`${label}${required ? ' *' : ''}`} disabled={disabled}>
      <Stack gap="xs">
        <Help text={description} />
        {rows.map(([name, text], index) => (
          <div key={index} className="row">
            <TextInput
              className="grow"
              aria-label={t`Name`}
              placeholder={t`Name`}
              value={name}
              onChange={(event) => set(index, [event.currentTarget.value, text])}
            />
            <TextInput
              className="grow"
              aria-label={t`Value`}
              placeholder={t`Value`}
              value={text}
              onChange={(event) => set(index, [name, event.currentTarget.value])}
            />
            <ActionIcon
              aria-label={t`Remove ${name}`}
              disabled={disabled}
              onClick={() => change(rows.filter((_, at) => at !== index))}
            >
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        <FieldError text={error} />
        {!disabled && <AddEntry onClick={() => setRows([...rows, ['', '']])} />}
      </Stack>
    </Fieldset>
  );
}

/** Date and time in the zone of the browser; the value is in milliseconds since 1970. */
export function TimeField({ value, onChange, empty, ...common }: InputProps & { empty: unknown }) {
  return (
    <TextInput
      {...common}
      type="datetime-local"
      value={typeof value === 'number' ? localTime(value) : ''}
      onChange={(event) => {
        const ms = new Date(event.currentTarget.value).getTime();
        onChange(Number.isNaN(ms) ? empty : ms);
      }}
    />
  );
}

function localTime(ms: number): string {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 16);
}

export function Help({ text }: { text: ReactNode }) {
  return (
    text && (
      <Text size="xs" c="dimmed">
        {text}
      </Text>
    )
  );
}

export function FieldError({ text }: { text: string | undefined }) {
  return (
    text && (
      <Text size="xs" c="var(--tg-critical)" role="alert">
        {text}
      </Text>
    )
  );
}

export function AddEntry({ onClick }: { onClick: () => void }) {
  return (
    <div>
      <Button variant="default" leftSection={<IconPlus size={14} />} onClick={onClick}>
        <Trans>Add</Trans>
      </Button>
    </div>
  );
}
