import { Button, Group, PasswordInput, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { changePassword, LoginError, useCaller } from '../../api/session';
import { NewPasswordFields } from './new-password-fields';

const minLength = 8;

/** Replaces the password of the caller; the session continues. */
export function PasswordForm({
  description,
  autoFocus = false,
  onChanged,
}: {
  /** Below the new password. */
  description: string;
  autoFocus?: boolean;
  onChanged?: () => void;
}) {
  const { t } = useLingui();
  const caller = useCaller();
  const [current, setCurrent] = useState('');
  const [next, setNext] = useState('');
  const [again, setAgain] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (next.length < minLength) return;
    if (next !== again) {
      setProblem(t`The passwords differ.`);
      return;
    }
    setPending(true);
    setProblem(null);
    try {
      await changePassword(caller.name, current, next);
      setCurrent('');
      setNext('');
      setAgain('');
      onChanged?.();
    } catch (error) {
      setProblem(error instanceof LoginError ? error.message : t`The node does not answer.`);
    }
    setPending(false);
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <Stack gap="sm">
        {/* For password managers. */}
        <input type="text" autoComplete="username" value={caller.name} readOnly hidden />
        <PasswordInput
          label={t`Current password`}
          autoComplete="current-password"
          required
          autoFocus={autoFocus}
          value={current}
          onChange={(event) => setCurrent(event.currentTarget.value)}
        />
        <NewPasswordFields
          kind="new"
          description={description}
          password={next}
          again={again}
          problem={next.length < minLength ? t`At least ${minLength} characters.` : undefined}
          onChange={(first, second) => {
            setNext(first);
            setAgain(second);
          }}
        />
        {problem && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {problem}
          </Text>
        )}
        <Group justify="flex-end">
          <Button type="submit" size="sm" loading={isPending} fullWidth={autoFocus}>
            <Trans>Change the password</Trans>
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
