import { Alert, Button, PasswordInput, Portal, Stack, Text, TextInput, Title } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useEffect, useRef, useState, type FormEvent } from 'react';
import { Link } from 'wouter';
import { logIn, LoginError } from '../../api/session';
import { isRegistrationOpen, registerPath } from './registration';

export function LoginPage() {
  return (
    <main className="login">
      <LoginForm />
    </main>
  );
}

/** Over the page, which continues with what was typed once its caller has logged in again. */
export function ExpiredSession() {
  return (
    // A place of its own in the page, apart from open dialogs.
    <Portal reuseTargetNode={false}>
      <LoginDialog />
    </Portal>
  );
}

function LoginDialog() {
  const { t } = useLingui();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const root = box.current?.closest('body > *');
    const others = [...document.body.children].filter((element) => element !== root);
    others.forEach((element) => element.toggleAttribute('inert', true));
    // Escape closes dialogs of the page wherever the focus is, except in elements with this attribute.
    const name = 'data-mantine-stop-propagation';
    const targets = [document.body, ...(box.current?.querySelectorAll('input, button') ?? [])];
    targets.forEach((element) => element.setAttribute(name, 'true'));
    return () => {
      others.forEach((element) => element.toggleAttribute('inert', false));
      document.body.removeAttribute(name);
    };
  }, []);
  return (
    <div ref={box} className="login expired-session" role="dialog" aria-modal="true" aria-label={t`Log in`}>
      <LoginForm isExpired />
    </div>
  );
}

function LoginForm({ isExpired = false }: { isExpired?: boolean }) {
  const { t } = useLingui();
  const [username, setUsername] = useState('');
  const [password, setPassword] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setPending(true);
    setProblem(null);
    try {
      await logIn(username, password);
    } catch (error) {
      setProblem(error instanceof LoginError ? error.message : t`The node does not answer.`);
      setPending(false);
    }
  };

  return (
    <form className="panel" onSubmit={(event) => void submit(event)}>
      <Stack className="panel-body" gap="sm">
        <div className="row">
          <img src="/favicon.svg" width={28} height={28} alt="" />
          <Title order={1}>Tidegate</Title>
        </div>
        {isExpired && (
          <Alert color="yellow" variant="light">
            <Trans>The session has ended. Log in to continue where you were.</Trans>
          </Alert>
        )}
        <TextInput
          label={t`Name`}
          autoComplete="username"
          required
          autoFocus
          value={username}
          onChange={(event) => setUsername(event.currentTarget.value)}
        />
        <PasswordInput
          label={t`Password`}
          autoComplete="current-password"
          required
          value={password}
          onChange={(event) => setPassword(event.currentTarget.value)}
        />
        {problem && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {problem}
          </Text>
        )}
        <Button type="submit" size="sm" loading={isPending} fullWidth>
          <Trans>Log in</Trans>
        </Button>
        {!isExpired && isRegistrationOpen() && (
          <Text size="sm" ta="center">
            <Link href={registerPath} className="link">
              <Trans>Register with an invitation</Trans>
            </Link>
          </Text>
        )}
        <Text size="xs" c="dimmed">
          <Trans>
            The first start of a node prints the password of the operator admin. Another one:{' '}
            <code>tidegate ctl operators set admin --ask-password</code>
          </Trans>
        </Text>
      </Stack>
    </form>
  );
}
