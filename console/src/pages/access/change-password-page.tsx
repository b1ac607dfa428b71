import { Button, PasswordInput, Stack, Text, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { changePassword, logOut, LoginError, type Caller } from '../../api/session';

/** Before anything else, for operators whose password was generated or set by somebody else. */
export function ChangePasswordPage({ caller }: { caller: Caller }) {
  const { t } = useLingui();
  const [current, setCurrent] = useState('');
  const [next, setNext] = useState('');
  const [repeated, setRepeated] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (next !== repeated) {
      setProblem(t`The passwords differ.`);
      return;
    }
    setPending(true);
    setProblem(null);
    try {
      await changePassword(caller.name, current, next);
    } catch (error) {
      setProblem(error instanceof LoginError ? error.message : t`The node does not answer.`);
      setPending(false);
    }
  };

  return (
    <main className="login">
      <form className="panel" onSubmit={(event) => void submit(event)}>
        <Stack className="panel-body" gap="sm">
          <Title order={1}>
            <Trans>Choose a password</Trans>
          </Title>
          <Text size="sm" c="dimmed">
            <Trans>
              The password of {caller.name} was generated or set by somebody else. Choose one that only you know.
            </Trans>
          </Text>
          <input type="hidden" autoComplete="username" value={caller.name} />
          <PasswordInput
            label={t`Current password`}
            autoComplete="current-password"
            required
            autoFocus
            value={current}
            onChange={(event) => setCurrent(event.currentTarget.value)}
          />
          <PasswordInput
            label={t`New password`}
            description={t`At least 8 characters.`}
            autoComplete="new-password"
            minLength={8}
            maxLength={256}
            required
            value={next}
            onChange={(event) => setNext(event.currentTarget.value)}
          />
          <PasswordInput
            label={t`New password again`}
            autoComplete="new-password"
            required
            value={repeated}
            onChange={(event) => setRepeated(event.currentTarget.value)}
          />
          {problem && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {problem}
            </Text>
          )}
          <Button type="submit" size="sm" loading={isPending} fullWidth>
            <Trans>Change the password</Trans>
          </Button>
          <Button variant="subtle" color="gray" fullWidth onClick={() => void logOut()}>
            <Trans>Log out</Trans>
          </Button>
        </Stack>
      </form>
    </main>
  );
}
